"""A short run over every kind of exchange, for ``compute-sanitizer python tests/gpu/short_script.py``."""

import sys

import numpy as np
import torch

from matrix_interop import convert, from_tensor

data = np.arange(48, dtype=np.float32).reshape(6, 8)
m = from_tensor(data).to_device("cuda:0", framework="torch")
for view, expected in ((m, data), (m[::2], data[::2]), (m[::-1], data[::-1]), (m.T, data.T), (m[1:2], data[1:2])):
    assert np.array_equal(np.asarray(view.to_host()), expected)
    assert np.array_equal(convert(view, "cupy").get(), expected)
    out = np.empty(expected.shape, np.float64)
    view.to_host(out=out)
    assert np.array_equal(out, expected)
with torch.cuda.stream(torch.cuda.Stream()):
    assert np.array_equal(from_tensor(convert(m, "cupy") * 2).to_tensor("torch").cpu().numpy(), data * 2)
assert np.array_equal(np.asarray(m.take([5, 0]).to_host()), data[[5, 0]])
assert m.normalized().to_host(non_blocking=True).result().shape == (6, 8)
sys.stdout.write("ok\n")
