"""Handed case T24, the part that needs no device: the streams that are asked for and taken."""

from __future__ import annotations

import numpy as np
import pytest

from hostile import Producer, consume
from matrix_interop import from_tensor


def test_t24_stream_zero_is_neither_asked_for_nor_taken() -> None:
    """Producers on a device are asked for the legacy stream by its name; 0 is refused with a BufferError."""
    a = np.ones((2, 3), np.float32)
    for forms in ("legacy", "versioned", "both"):
        stub = Producer(a, device=(2, 0), forms=forms)
        m = from_tensor(stub)
        asked = [call.get("stream") for call in stub.calls]
        assert set(asked) == {1}
        for stream in (None, -1, 1):
            assert consume(m.__dlpack__(stream=stream, copy=None, max_version=(1, 0))).device == (2, 0)
        with pytest.raises(BufferError, match="stream"):
            m.__dlpack__(stream=0, max_version=(1, 0))
    host = Producer(a)
    from_tensor(host)
    assert host.calls == [{"max_version": (1, 1)}]
