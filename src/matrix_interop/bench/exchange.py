"""One conversion between frameworks on the host, beside the fastest bare call and ``from_dlpack``.

A matrix of 1000 x 128 float32 that every framework can share.  "matrix" makes a `Matrix` of the
source and asks it for the target, "convert" does both in one call, "second" asks a `Matrix` that is
there already.  "bare" is the fastest call found that gives the same without this library, "naive"
what people write: ``from_dlpack``, where there is one.  torch cannot keep memory read-only, so jax and
Arrow go into it with ``share_readonly=True``, which is what the bare calls do unasked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from matrix_interop.bench.command import run_suite
from matrix_interop.bench.harness import Call, Case, Goal
from matrix_interop.exchange.convert import convert
from matrix_interop.frameworks.registry import frameworks
from matrix_interop.matrix import from_tensor
from matrix_interop.memory.host import aligned_empty

__all__ = ["cases", "main"]

_SHAPE: Final = (1000, 128)
_US: Final = 1e-6
#: Module name -> its name in the calls below.
_NAMES: Final = {"numpy": "np", "torch": "torch", "jax": "jax", "jax.numpy": "jnp", "pyarrow": "pa"}
_LISTS: Final = "pa.FixedSizeListArray.from_arrays(pa.array({}.reshape(-1)), 128)"
#: (source, target) -> the fastest bare call and the naive one; x is the source.
_CALLS: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("numpy", "torch"): {"bare": "torch.from_numpy(x)", "naive": "torch.from_dlpack(x)"},
    ("torch", "numpy"): {"bare": "x.numpy()", "naive": "np.from_dlpack(x)"},
    ("numpy", "jax"): {"bare": "jax.dlpack.from_dlpack(x)", "naive": "jnp.from_dlpack(x)"},
    ("jax", "numpy"): {"bare": "np.asarray(x)", "naive": "np.from_dlpack(x)"},
    ("torch", "jax"): {"bare": "jax.dlpack.from_dlpack(x.numpy())", "naive": "jnp.from_dlpack(x)"},
    ("jax", "torch"): {"bare": "torch.from_numpy(np.asarray(x))", "naive": "torch.from_dlpack(x)"},
    ("numpy", "pyarrow"): {"bare": _LISTS.format("x")},
    ("torch", "pyarrow"): {"bare": _LISTS.format("x.numpy()")},
    ("jax", "pyarrow"): {"bare": _LISTS.format("np.asarray(x)")},
    ("pyarrow", "numpy"): {
        "bare": "np.from_dlpack(x.values).reshape(1000, 128)",
        "naive": "np.from_dlpack(x.flatten()).reshape(1000, 128)",
    },
    ("pyarrow", "torch"): {
        "bare": "torch.from_numpy(np.from_dlpack(x.values).reshape(1000, 128))",
        "naive": "torch.from_dlpack(x.flatten()).reshape(1000, 128)",
    },
    ("pyarrow", "jax"): {
        "bare": "jnp.from_dlpack(x.values).reshape(1000, 128)",
        "naive": "jnp.from_dlpack(x.flatten()).reshape(1000, 128)",
    },
}
#: Pairs whose `convert` is to be faster than the naive call, not only 1 us from it; pairs to be close to the bare call.
_FASTER: Final = {("numpy", "torch"), ("torch", "numpy"), ("jax", "numpy")}
_CLOSE: Final = {("numpy", "torch"), ("torch", "numpy")}


def cases() -> Iterator[Case]:
    """One case for each pair of the frameworks that are installed and work."""
    here = {info.name for info in frameworks(load=True) if info.installed and info.problem is None}
    base = aligned_empty(_SHAPE, np.dtype(np.float32))
    base[...] = np.random.default_rng(0).standard_normal(_SHAPE)
    modules = {short: import_module(name) for name, short in _NAMES.items() if name.partition(".")[0] in here}
    for (source, target), bare in _CALLS.items():
        if {source, target} <= here:
            yield _case(source, target, bare, base, modules)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suite as the command line says."""
    run_suite("exchange", __doc__, cases(), arguments)


def _case(source: str, target: str, bare: dict[str, str], base: np.ndarray, modules: dict[str, Any]) -> Case:
    x = convert(base, source, copy=True)
    names = {**modules, "x": x, "m": from_tensor(x), "from_tensor": from_tensor, "convert": convert}
    share = ", share_readonly=True" if target == "torch" and source in ("jax", "pyarrow") else ""
    ours = {
        "matrix": f"from_tensor(x).to_tensor({target!r}{share})",
        "convert": f"convert(x, {target!r}{share})",
        "second": f"m.to_tensor({target!r}{share})",
    }
    calls = {name: Call.of(text, names) for name, text in {**ours, **bare}.items()}
    return Case(f"{source} -> {target}", calls, _goals(source, target, calls), value=_value)


def _goals(source: str, target: str, calls: dict[str, Call]) -> tuple[Goal, ...]:
    goals = [Goal("second", "bare", plus=0.5 * _US)]
    if (source, target) in _CLOSE:
        goals.append(Goal("matrix", "bare", factor=1.5, plus=1 * _US))
    if "naive" in calls:
        goals.append(Goal("matrix", "naive", plus=1 * _US))
        goals.append(Goal("convert", "naive", plus=0.0 if (source, target) in _FASTER else 1 * _US))
    return tuple(goals)


def _value(result: Any) -> np.ndarray:
    return np.asarray(from_tensor(result))


if __name__ == "__main__":
    main()
