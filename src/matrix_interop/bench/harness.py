"""How every suite is measured: results checked first, then all ways of doing one thing timed in turn.

The ways that are compared run in one process, in short bursts that alternate in a new order each
round, so that a slow spell of the machine hits all of them alike.  What counts is the median over
the rounds; the distance between the quartiles tells how far to trust it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from timeit import Timer
from typing import Any, Final

import numpy as np

from matrix_interop.view import TensorView

__all__ = ["CLOCKS", "ROUNDS", "Call", "Case", "Goal", "Outcome", "Reading", "measure", "run"]

#: What counts as time: the wall clock, or what this process used of the processors (for a machine shared with others).
CLOCKS: Final[dict[str, Callable[[], float]]] = {"wall": time.perf_counter, "cpu": time.process_time}
#: One burst lasts about this long, in seconds: far above the clock's resolution, far below a slow spell.
_BURST: Final = 2e-3
#: Bursts of each call, where nobody says.
ROUNDS: Final = 25


@dataclass(frozen=True, slots=True)
class Call:
    """One way of doing the thing: the call, and its text for the reader."""

    text: str
    run: Callable[[], Any]

    @classmethod
    def of(cls, text: str, names: dict[str, Any]) -> Call:
        """The call whose Python expression is ``text``, with ``names`` in it. For texts written in a suite only."""
        return cls(text, eval(f"lambda: {text}", names))  # noqa: S307 - so that what is shown is what ran


@dataclass(frozen=True, slots=True)
class Goal:
    """``call`` takes at most ``factor`` times as long as ``against``, and ``plus`` seconds."""

    call: str
    against: str
    factor: float = 1.0
    plus: float = 0.0

    def __str__(self) -> str:
        times = "" if self.factor == 1 else f"{self.factor:g} x "
        plus = f" + {self.plus * 1e6:g} us" if self.plus else ""
        return f"{self.call} <= {times}{self.against}{plus}"

    def met(self, readings: Mapping[str, Reading]) -> bool:
        """True if the medians meet it."""
        limit = self.factor * readings[self.against].median + self.plus
        return readings[self.call].median <= limit


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to do, and the ways of doing it by name.

    The first is the one in question, "bare" what it is held against.  ``value`` turns a result into
    an array: all ways have to give equal ones.  ``nbytes``: payload of one call, for bytes a second;
    0 where that says nothing.
    """

    name: str
    calls: Mapping[str, Call]
    goals: tuple[Goal, ...] = ()
    nbytes: int = 0
    value: Callable[[Any], np.ndarray] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds a call over the rounds: median, quartiles, best; ``loops`` calls a burst."""

    median: float
    low: float
    high: float
    best: float
    rounds: int
    loops: int

    @property
    def spread(self) -> float:
        """Distance between the quartiles, as a share of the median."""
        return (self.high - self.low) / self.median


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case and the readings of its calls."""

    case: Case
    readings: Mapping[str, Reading]

    @property
    def ratio(self) -> float | None:
        """How many times as long as the bare call the first one takes; None without a bare one."""
        first = next(iter(self.readings.values()))
        return first.median / self.readings["bare"].median if "bare" in self.readings else None

    @property
    def missed(self) -> tuple[Goal, ...]:
        """The goals that the medians do not meet."""
        return tuple(goal for goal in self.case.goals if not goal.met(self.readings))


def run(cases: Iterable[Case], *, rounds: int = ROUNDS, clock: str = "wall") -> Iterator[Outcome]:
    """Check and measure one case after the other. Raises AssertionError where the ways of one disagree."""
    for case in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what other libraries say about the bare calls is not the reader's concern
            check(case)
            readings = measure({name: call.run for name, call in case.calls.items()}, rounds=rounds, clock=clock)
        yield Outcome(case, readings)


def check(case: Case) -> None:
    """Run each way once and compare shape, dtype and every byte of the results. Raises AssertionError naming two."""
    value = case.value or _array
    expected: np.ndarray | None = None
    first = ""
    for call in case.calls.values():
        found = value(call.run())
        if expected is None:
            expected, first = found.copy(), call.text
        same = found.shape == expected.shape and found.dtype == expected.dtype and found.tobytes() == expected.tobytes()
        if not same:
            theirs, this = (f"{array.dtype} {array.shape}" for array in (expected, found))
            msg = f"{case.name}: {call.text} gives another result ({this}) than {first} ({theirs})"
            raise AssertionError(msg)


def measure(
    calls: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = ROUNDS,
    clock: str = "wall",
    burst: float = _BURST,
    singly: bool = False,
) -> dict[str, Reading]:
    """Seconds a call, by name. The first burst of each warms up and is not counted; collection of garbage is off.

    A burst counts as its mean, because a clock cannot time calls of microseconds one by one; ``singly``: each of its
    calls counts, for calls of milliseconds.
    """
    timers = {name: Timer(call, timer=CLOCKS[clock]) for name, call in calls.items()}
    loops = {name: _loops(timer, burst) for name, timer in timers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    names = list(timers)
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            if singly:
                seconds[name] += timers[name].repeat(loops[name], 1)
            else:
                seconds[name].append(timers[name].timeit(loops[name]) / loops[name])
    return {name: _reading(taken, loops[name]) for name, taken in seconds.items()}


def _loops(timer: Timer, burst: float) -> int:
    """How many calls last about ``burst`` seconds; 1 for a call that lasts longer by itself."""
    timer.timeit(1)  # the first call may import, allocate or compile
    loops = 1
    while True:
        taken = timer.timeit(loops)
        if taken >= burst / 2:
            return max(1, round(loops * burst / taken))
        loops *= 4


def _reading(seconds: list[float], loops: int) -> Reading:
    low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
    return Reading(median, low, high, min(seconds), len(seconds), loops)


def _array(result: Any) -> np.ndarray:
    return TensorView(result).header
