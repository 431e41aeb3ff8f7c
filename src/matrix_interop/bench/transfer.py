"""Moving a matrix between ordinary host memory and the device, beside what people use today.

16384 x 2048 float32 (128 MiB) and eight times as many rows.  "bus" is a bare copy of page-locked memory of the same
size.  "to_host fresh" gives new host memory: warm (the arena holds some), cold (a new arena each time), and over the
limit (ordinary memory, whose pages fault for the first time).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from matrix_interop.bench.bus import Bus, at_least, case, run_bus_suite, times
from matrix_interop.bench.harness import Call, Case
from matrix_interop.matrix import Matrix, from_tensor
from matrix_interop.memory import PinnedArena, use_arena
from matrix_interop.memory.host import aligned_empty

__all__ = ["cases", "main"]

_SHAPE: Final = (16384, 2048)
_LARGE: Final = 8
_REST_S: Final = 0.02
_Ways = dict[str, tuple[str, Callable[[], Any]] | Call]


def cases(bus: Bus, scale: float = 1.0) -> Iterator[Case]:
    """All rows of the table."""
    rows = max(1, int(_SHAPE[0] * scale))
    small = _values(rows)
    yield _to_device(bus, small, 0.88)
    yield _to_host_out(bus, small)
    yield _after_a_rest(bus, small)
    yield from _to_host_fresh(bus, small)
    yield _columns(bus, small)
    yield _rows_of_columns(bus, small)
    yield _narrowed(bus, small)
    yield from _mapped(bus, small)
    yield _device_to_host(bus, rows)
    del small
    large = _values(rows * _LARGE)
    yield _to_device(bus, large, 0.95)
    yield _to_host_out(bus, large)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suite as the command line says."""
    run_bus_suite("transfer", __doc__, cases, arguments)


def _values(rows: int, columns: int = _SHAPE[1]) -> np.ndarray:
    out = aligned_empty((rows, columns), np.dtype(np.float32))
    np.random.default_rng(0).random(out=out, dtype=np.float32)
    return out


def _size(values: np.ndarray) -> str:
    return f"{values.nbytes / 2**20:.0f} MiB"


def _senders(bus: Bus, a: np.ndarray) -> _Ways:
    """What people write to get a NumPy array onto the device."""
    torch, cupy, jax = (bus.modules.get(name) for name in ("torch", "cupy", "jax"))
    ways: _Ways = {}
    if torch is not None:
        ways["torch"] = "torch.from_numpy(a).to('cuda')", lambda: torch.from_numpy(a).to("cuda")
        ways["torch pin"] = (
            "torch.from_numpy(a).pin_memory().to('cuda', non_blocking=True)",
            lambda: torch.from_numpy(a).pin_memory().to("cuda", non_blocking=True),
        )
    if cupy is not None:
        ways["cupy"] = "cupy.asarray(a)", lambda: cupy.asarray(a)
    if jax is not None:
        ways["jax"] = "jax.device_put(a)", lambda: jax.device_put(a).block_until_ready()
    return ways


def _to_device(bus: Bus, a: np.ndarray, share: float) -> Case:
    m = from_tensor(a)
    ways: _Ways = {"ours": ("from_tensor(a).to_device()", lambda: m.to_device(bus.device))}
    goals = at_least(share), *times(5, "torch", "cupy", "jax")
    ways |= {"bus": bus.bare(a, to_device=True), **_senders(bus, a)}
    return case(bus, f"to_device from an ordinary array, {_size(a)}", ways, a.nbytes, *goals)


def _to_host_out(bus: Bus, a: np.ndarray) -> Case:
    there, out = from_tensor(a).to_device(bus.device), aligned_empty(a.shape, a.dtype)
    torch, cupy = bus.modules.get("torch"), bus.modules.get("cupy")
    ways: _Ways = {"ours": ("m.to_host(out=out)", lambda: there.to_host(out=out)), "bus": bus.bare(a, to_device=False)}
    if torch is not None:
        t, host = there.to_tensor("torch"), torch.from_numpy(out)
        ways["torch"] = "torch.from_numpy(out).copy_(t)", lambda: host.copy_(t)
    if cupy is not None:
        c = there.to_tensor("cupy")
        ways["cupy"] = "c.get(out=out)", lambda: c.get(out=out)
    return case(bus, f"to_host(out= ordinary array), {_size(a)}", ways, a.nbytes, at_least(0.85))


def _after_a_rest(bus: Bus, a: np.ndarray) -> Case:
    """The processors sleep between two calls, as in a program that moves something now and then."""
    m = from_tensor(a)
    there = m.to_device(bus.device)
    ways: _Ways = {
        "ours": (
            "to_device(), to_host() and 2 x 20 ms of rest",
            lambda: _rested(lambda: m.to_device(bus.device), there),
        ),
        "rest": ("2 x 20 ms of rest", lambda: _rested(lambda: there, None)),
    }
    return case(bus, f"there and back after a rest, {_size(a)} (subtract the rest)", ways, 2 * a.nbytes)


def _rested(send: Callable[[], Matrix], there: Matrix | None) -> Matrix:
    time.sleep(_REST_S)
    sent = send()
    time.sleep(_REST_S)
    return sent if there is None else there.to_host()


def _to_host_fresh(bus: Bus, a: np.ndarray) -> Iterator[Case]:
    there = from_tensor(a).to_device(bus.device)
    torch, cupy, jax = (bus.modules.get(name) for name in ("torch", "cupy", "jax"))
    bare = bus.bare(a, to_device=False)
    peers: _Ways = {}
    if torch is not None:
        t = there.to_tensor("torch")
        peers["torch"] = "t.cpu()", t.cpu
    if cupy is not None:
        c = there.to_tensor("cupy")
        peers["cupy"] = "cupy.asnumpy(c)", lambda: cupy.asnumpy(c)
    if jax is not None:
        j = there.to_tensor("jax")
        # JAX keeps the host copy of an array: a new array each time, made on the device in a hundredth of the time.
        peers["jax"] = "np.asarray(jax copy)", lambda: np.asarray(jax.numpy.array(j, copy=True))
    ways: _Ways = {"ours": ("m.to_host()", there.to_host), "bus": bare, **peers}
    yield case(bus, f"to_host fresh, warm, {_size(a)}", ways, a.nbytes, at_least(0.90))
    ways = {"ours": ("m.to_host() in a new arena", lambda: _in_arena(there, PinnedArena())), "bus": bare}
    yield case(bus, f"to_host fresh, cold, {_size(a)}", ways, a.nbytes)
    full = PinnedArena(result_bytes=0)
    ways = {"ours": ("m.to_host() over the limit", lambda: _in_arena(there, full)), "bus": bare, **peers}
    yield case(bus, f"to_host fresh, over the limit, {_size(a)}", ways, a.nbytes, *times(3, "torch", "cupy", "jax"))


def _in_arena(there: Matrix, arena: PinnedArena) -> Matrix:
    with use_arena(arena):
        return there.to_host()


def _columns(bus: Bus, a: np.ndarray) -> Case:
    f = np.asfortranarray(a)
    m = from_tensor(f)
    ways: _Ways = {"ours": ("from_tensor(f).to_device()", lambda: m.to_device(bus.device))}
    ways |= {"bus": bus.bare(a, to_device=True), **_senders(bus, f)}
    goals = times(3, "torch", "torch pin", "cupy", "jax")
    return case(bus, f"Fortran order to the device, {_size(a)}", ways, a.nbytes, *goals)


def _rows_of_columns(bus: Bus, a: np.ndarray) -> Case:
    f = np.asfortranarray(a)
    torch, cupy = bus.modules.get("torch"), bus.modules.get("cupy")
    ways: _Ways = {
        "ours": (
            "from_tensor(f, device=..., order='C')",
            lambda: from_tensor(f, device=bus.device, order="C", framework=bus.names[0]),
        ),
        "bus": bus.bare(a, to_device=True),
    }
    if torch is not None:
        ways["torch"] = (
            "torch.from_numpy(f).to('cuda').contiguous()",
            lambda: torch.from_numpy(f).to("cuda").contiguous(),
        )
    if cupy is not None:
        ways["cupy"] = "cupy.asarray(f, order='C')", lambda: cupy.asarray(f, order="C")
    return case(
        bus, f"Fortran order to dense rows on the device, {_size(a)}", ways, a.nbytes, *times(3, "torch", "cupy")
    )


def _narrowed(bus: Bus, a: np.ndarray) -> Case:
    d = a.astype(np.float64)
    m = from_tensor(d)
    torch, cupy, jax = (bus.modules.get(name) for name in ("torch", "cupy", "jax"))
    ways: _Ways = {
        "ours": ("from_tensor(d).to_device(dtype='float32')", lambda: m.to_device(bus.device, dtype="float32")),
        "bus": bus.bare(a, to_device=True),
    }
    if torch is not None:
        ways["torch"] = (
            "torch.from_numpy(d).to('cuda', torch.float32)",
            lambda: torch.from_numpy(d).to("cuda", torch.float32),
        )
        ways["torch 2"] = "torch.from_numpy(d).to('cuda').float()", lambda: torch.from_numpy(d).to("cuda").float()
    if cupy is not None:
        ways["cupy"] = "cupy.asarray(d).astype('float32')", lambda: cupy.asarray(d).astype("float32")
    if jax is not None:
        ways["jax"] = "jax.device_put(d)", lambda: jax.device_put(d).block_until_ready()  # 32 bits: x64 is off
    goals = times(3, "torch", "torch 2", "cupy", "jax")
    return case(bus, f"float64 to a float32 device matrix, {_size(a)}", ways, a.nbytes, *goals)


def _mapped(bus: Bus, a: np.ndarray) -> Iterator[Case]:
    from matrix_interop.io import open_matrix

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, a)
        torch = bus.modules.get("torch")
        ways: _Ways = {
            "ours": ("open_matrix(path).to_device()", lambda: open_matrix(path).to_device(bus.device)),
            "bus": bus.bare(a, to_device=True),
        }
        if torch is not None:
            ways["torch"] = (
                "torch.from_numpy(np.load(path, mmap_mode='c')).to('cuda')",
                lambda: torch.from_numpy(np.load(path, mmap_mode="c")).to("cuda"),
            )
        yield case(bus, f"mapped file in the page cache to the device, {_size(a)}", ways, a.nbytes, at_least(0.75))


def _device_to_host(bus: Bus, rows: int) -> Case:
    """By cuVS's name and shape, which transpose the others': 2048 rows of 16384."""
    a = _values(max(1, rows // 8), 16384)
    there = from_tensor(a).to_device(bus.device)
    ways: _Ways = {"ours": ("m.to_host()", there.to_host), "bus": bus.bare(a, to_device=False)}
    return case(bus, f"copy device to host (cuVS), {a.shape[0]} x {a.shape[1]}", ways, a.nbytes)


if __name__ == "__main__":
    main()
