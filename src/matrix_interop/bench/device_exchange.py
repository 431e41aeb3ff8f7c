"""One conversion between frameworks on a GPU, beside the bare calls that people write.

A matrix of 1000 x 128 float32, both frameworks on one stream.  "matrix" makes a `Matrix` of the source and asks it for
the target, "convert" does both in one call, "second" asks a `Matrix` that is there already.  "bare" is
``from_dlpack`` of the target, "interface" the call that goes through the CUDA array interface where there is one.
JAX arrays are read-only, which torch and CuPy cannot keep: they share with ``share_readonly=True``, as the bare calls
do unasked.  Where there are two devices, 1 GiB goes from one to the other, waited for.
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

__all__ = ["cases", "main"]

_SHAPE: Final = (1000, 128)
#: float32 entries of the copy between two devices.
_PEER_ENTRIES: Final = 1 << 28
#: Module name -> its name in the calls below.
_NAMES: Final = {"torch": "torch", "cupy": "cupy", "jax": "jax"}
#: (source, target) -> bare calls by name; x is the source.
_CALLS: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("torch", "cupy"): {"bare": "cupy.from_dlpack(x)", "interface": "cupy.asarray(x)"},
    ("cupy", "torch"): {"bare": "torch.from_dlpack(x)", "interface": "torch.as_tensor(x, device='cuda')"},
    ("torch", "jax"): {"bare": "jax.dlpack.from_dlpack(x)"},
    ("jax", "torch"): {"bare": "torch.from_dlpack(x)"},
    ("cupy", "jax"): {"bare": "jax.dlpack.from_dlpack(x)"},
    ("jax", "cupy"): {"bare": "cupy.from_dlpack(x)", "interface": "cupy.asarray(x)"},
}
#: Most seconds that the calls may take where that is a promise.
_LIMITS: Final[dict[tuple[str, str], dict[str, float]]] = {
    ("torch", "cupy"): {"matrix": 5e-6, "second": 3e-6},
    ("cupy", "torch"): {"matrix": 4e-6, "second": 3e-6},
}


def cases() -> Iterator[Case]:
    """One case for each pair of the frameworks that see a CUDA device."""
    here = {info.name for info in frameworks(load=True) if any(device.type == "cuda" for device in info.devices)}
    base = np.random.default_rng(0).standard_normal(_SHAPE).astype(np.float32)
    modules = {name: import_module(name) for name in _NAMES if name in here}
    if "jax" in modules:
        import_module("jax.dlpack")
    for (source, target), bare in _CALLS.items():
        if {source, target} <= here:
            yield _case(source, target, bare, base, modules)
    torch = modules.get("torch")
    if torch is not None and torch.cuda.device_count() > 1:
        yield _peer_case(torch)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suite as the command line says."""
    run_suite("device_exchange", __doc__, cases(), arguments)


def _case(source: str, target: str, bare: dict[str, str], base: np.ndarray, modules: dict[str, Any]) -> Case:
    x = convert(base, source, device="cuda")
    if source == "jax":
        x.block_until_ready()
    names = {**modules, "x": x, "m": from_tensor(x), "from_tensor": from_tensor, "convert": convert}
    share = ", share_readonly=True" if source == "jax" else ""
    ours = {
        "matrix": f"from_tensor(x).to_tensor({target!r}{share})",
        "convert": f"convert(x, {target!r}{share})",
        "second": f"m.to_tensor({target!r}{share})",
    }
    calls = {name: Call.of(text, names) for name, text in {**ours, **bare}.items()}
    goals = [Goal("matrix", "bare"), Goal("second", "bare")]
    for name, limit in _LIMITS.get((source, target), {}).items():
        goals.append(Goal(name, "bare", factor=0.0, plus=limit))
    return Case(f"{source} -> {target}", calls, tuple(goals), value=_value)


def _peer_case(torch: Any) -> Case:
    x = torch.arange(_PEER_ENTRIES, dtype=torch.float32, device="cuda:0").reshape(-1, 1024)
    m = from_tensor(x)

    def done(made: Any) -> Any:
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        return made

    calls = {
        "matrix": Call("from_tensor(x).to_device('cuda:1')", lambda: done(from_tensor(x).to_device("cuda:1"))),
        "second": Call("m.to_device('cuda:1')", lambda: done(m.to_device("cuda:1"))),
        "bare": Call("x.to('cuda:1')", lambda: done(x.to("cuda:1"))),
    }
    goals = (Goal("matrix", "bare", factor=1 / 0.9), Goal("second", "bare", factor=1 / 0.9))
    return Case("cuda:0 -> cuda:1, 1 GiB", calls, goals, nbytes=4 * _PEER_ENTRIES, value=_value)


def _value(result: Any) -> np.ndarray:
    return np.asarray(from_tensor(result).to_host())


if __name__ == "__main__":
    main()
