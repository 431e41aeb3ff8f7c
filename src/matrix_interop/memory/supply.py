"""Which upstreams an arena tries, in which order, and why it passed some over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.memory.policies import PINNED_ORDER, Policy
from matrix_interop.memory.upstreams import REFUSALS, Upstream, make_upstream
from matrix_interop.runtime import Runtime, get_runtime

if TYPE_CHECKING:
    from typing import Literal

__all__ = ["Supply"]

_NAMES: Final = ("virtual", *PINNED_ORDER)

#: Set in a forked child of a process in which an arena used a device: the child must not.
parent_used_device = False


class Supply:
    """Upstreams one after another, each proved by a round trip before it is handed out.

    ``upstream`` is "auto", a name (those that come after it in the order virtual, registered, host_alloc, ordinary
    stand in for it), or an `Upstream`, used as it is. The device is looked for when the first upstream is.
    """

    def __init__(self, upstream: str | Upstream, policy: Policy, runtime: Runtime | Literal["auto"] | None) -> None:
        self.reasons: list[str] = []
        self.runtime: Runtime | None = None
        self._wanted = runtime
        self._given: Upstream | None = None
        if not isinstance(upstream, str):
            self._given = upstream
            self._names: list[str] = []
        elif upstream == "auto":
            self._names = list(policy.upstreams)
        elif upstream in _NAMES:
            self._names = list(_NAMES[_NAMES.index(upstream) :])
        else:
            msg = f"upstream {upstream!r} is none of auto, {', '.join(_NAMES)}"
            raise ValueError(msg)
        self._started = False

    def next(self) -> Upstream | None:
        """The next upstream that works, or None when all have been handed out."""
        if not self._started:
            self._started = True
            self._find_device()
        if self._given is not None:
            given, self._given = self._given, None
            return given
        while self._names:
            name = self._names.pop(0)
            if name != "ordinary" and self.runtime is None:
                continue
            try:
                return make_upstream(name, self.runtime)
            except REFUSALS as error:
                self.reasons.append(f"{name}: {error}")
        return None

    def _find_device(self) -> None:
        if self._wanted != "auto":
            self.runtime = self._wanted
            if self.runtime is None and self._given is None:
                self.reasons.append("ordinary memory: the arena was told to use no device")
        elif parent_used_device:
            self.reasons.append("ordinary memory: this process was forked from one that used a device")
        elif self._names != ["ordinary"]:
            try:
                self.runtime = get_runtime("cuda")
            except DeviceUnavailableError as error:
                self.reasons.append(f"ordinary memory: {error}")
