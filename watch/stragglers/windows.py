"""A rank's own compute and waits by windows of steps, folded from its reports of pace.

    reports     |--1 s--|--1 s--|--1 s--| …           each: means over the steps since the last
    windows     |  steps 0 … 15  |  steps 16 … 31  |  means over a power of two of steps

Every rank counts its steps alike, and the begin of a window is a multiple of its size. So windows of several ranks are
compared step by step, whatever their clocks say, and smaller windows are joined to larger ones (``alignment``).
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeGuard

from muster.domain.robust import is_figure

LEAST_STEPS: Final = 4
MOST_STEPS: Final = 1 << 24
MOST_WINDOWS: Final = 20
"""Closed windows of a rank that are kept: the windows that are judged together, and its past before them."""
LONGEST_PLACE: Final = 64
LEAST_BEFORE: Final = 3
"""So many windows show how far a rank was from its peers before."""
_DIGITS: Final = 6
_OUT_OF_SCALE: Final = 4.0
"""Windows get another size if one lasts so many times longer or shorter than it should."""
SIGNALS: Final = (
    "cpu_wait_s",
    "gc_s",
    "threads_s",
    "io_wait_s",
    "steal_share",
    "switches_per_s",
    "read_bytes_per_s",
)
"""Readings of a rank's process and host that explain why it is slow."""
MFU: Final = "mfu"
UTILISATION: Final = "utilisation"
POWER: Final = "power_w"
PLAIN: Final = "plain"
"""The share of steps whose reports left none out: a step that evaluates, compiles or saves is left out."""
_BY_RANK: Final = ("own_s", "wait_s", "least_wait_s", "data_s", "work", "memory_mib", MFU, PLAIN, *SIGNALS)
_MEANS: Final = (*_BY_RANK, UTILISATION, POWER)
"""Means of a window. A rank reports those in ``_BY_RANK``; utilisation and power are what its host read of its GPU."""
_LONGEST: Final = ("longest_own_s", "longest_steps")
"""Own compute of the report with the longest steps, and how many steps it has."""


@dataclass(frozen=True, slots=True)
class Window:
    """Means over the steps of a window. ``first``: its first step, from 0; ``num_steps``: how many were measured.

    ``size``: how many steps it covers; 0 while it is open.

    ``means``: ``own_s``, a step's time without waits; ``wait_s`` in collectives, of each report at most the least of
    all and own compute, since one may hold a long evaluation of another rank; ``data_s``; ``work``, the tokens or
    samples of a step with their padding; ``memory_mib``; ``SIGNALS``; ``mfu``; ``plain``; utilisation and power of its
    GPU; and ``_LONGEST``. A figure that was not reported is missing.
    """

    first: int
    num_steps: int
    means: Mapping[str, float]
    size: int = 0

    @property
    def last_step(self) -> int:
        """Its last step, from 1, which is the first one after it, from 0."""
        return self.first + self.size

    def sized(self, size: int) -> "Window":
        """Return it with ``size`` where it has none."""
        return self if self.size else replace(self, size=size)

    def within(self, first: int, size: int) -> "Window":
        """Return it as the only known part of a larger window."""
        return self if (first, size) == (self.first, self.size) else replace(self, first=first, size=size)

    def get(self, name: str) -> float | None:
        return self.means.get(name)

    @property
    def is_plain(self) -> bool:
        """Whether all its steps trained alone, so that readings of its GPU are of training."""
        return self.means.get(PLAIN) == 1.0

    @property
    def lasted_s(self) -> float:
        """How long its measured steps took."""
        return self.num_steps * self.step_s

    @property
    def step_s(self) -> float:
        """A step's time: own compute and waits."""
        return _step_s(self.means)

    def with_readings(self, readings: Mapping[str, float]) -> "Window":
        """Return it with utilisation and power of the rank's GPU."""
        return replace(self, means={**self.means, **readings})

    @property
    def least_wait_s(self) -> float | None:
        """The least wait of its reports: a pause of one rank does not lengthen it."""
        return self.means.get("least_wait_s", self.means.get("wait_s"))

    @property
    def steady_own_s(self) -> float:
        """Own compute without the report with the longest steps: one pause of the rank does not lengthen it.

        Of a window with one report, or in which that report has most of the steps, it is the mean of all.
        """
        own_s, steps = self.means["own_s"], int(self.means.get("longest_steps", 0))
        if not 0 < 2 * steps <= self.num_steps:
            return own_s
        return max(own_s * self.num_steps - self.means["longest_own_s"] * steps, 0.0) / (self.num_steps - steps)

    def with_steps(self, num_steps: int, means: Mapping[str, float]) -> "Window":
        """Return this window with the means of further steps."""
        total = self.num_steps + num_steps
        joined = {
            name: (self.means[name] * self.num_steps + means[name] * num_steps) / total
            for name in _MEANS
            if name in self.means and name in means
        }
        if "wait_s" in joined:
            parts = ((self.means, self.num_steps), (means, num_steps))
            least_s = min(part.get("least_wait_s", part["wait_s"]) for part, _ in parts)
            capped = (min(part["wait_s"], least_s + part["own_s"]) * steps for part, steps in parts)
            joined |= {"wait_s": sum(capped) / total, "least_wait_s": least_s}
        if all(name in part for part in (self.means, means) for name in _LONGEST):
            joined |= _longest_of(max(self.means, means, key=lambda each: each["longest_own_s"]))
        return replace(self, num_steps=total, means=joined)

    def document(self) -> dict[str, Any]:
        means = {name: round(value, _DIGITS) for name, value in self.means.items()}
        return {"first": self.first, "steps": self.num_steps, **means}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> "Window":
        means = {name: float(document[name]) for name in (*_MEANS, *_LONGEST) if name in document}
        return cls(int(document["first"]), int(document["steps"]), means, int(document.get("size", 0)))


@dataclass(frozen=True, slots=True)
class Folding:
    """The window that a rank is in. ``size``: steps of a window; 0 before the first report. ``place``: in the mesh."""

    size: int = 0
    place: str = ""
    window: Window | None = None

    def with_pace(self, step: int, pace: Mapping[str, Any], window_s: float) -> "tuple[Folding, Window | None]":
        """Take a report of pace. Return the new state, and the window that is over, if one is.

        ``step``: the last step of the report. A report without own compute, as of an older runtime, changes nothing.
        """
        means, num_steps = _means_of(pace), _count(pace.get("own_steps", pace.get("num_steps")))
        if "own_s" not in means or num_steps < 1 or step < 1:
            return self, None
        means |= {"longest_own_s": means["own_s"], "longest_steps": float(num_steps)}
        size, place = self.size or size_of(_step_s(means), window_s), str(pace.get("place") or "")[:LONGEST_PLACE]
        first = (step - 1) // size * size
        if self.window is not None and self.window.first == first and place == self.place:
            return replace(self, window=self.window.with_steps(num_steps, means)), None
        closed = self._closed(first)
        if closed is not None and not _is_in_scale(size * closed.step_s, size, window_s):
            size = size_of(closed.step_s, window_s)
        first = (step - 1) // size * size
        return Folding(size, place, Window(first, num_steps, means)), closed

    def _closed(self, next_first: int) -> Window | None:
        """Return the window that is over; None if too few of its steps were measured, or steps were rolled back."""
        window = self.window
        if window is None or next_first <= window.first or 2 * window.num_steps < min(self.size, LEAST_STEPS):
            return None
        return window

    def document(self) -> dict[str, Any]:
        window = None if self.window is None else self.window.document()
        return {"size": self.size, "place": self.place, "window": window}

    @classmethod
    def of_document(cls, document: Mapping[str, Any] | None) -> "Folding":
        if document is None:
            return cls()
        window = document["window"]
        is_open = window is not None
        return cls(int(document["size"]), str(document["place"]), Window.of_document(window) if is_open else None)


@dataclass(frozen=True, slots=True)
class RankWindows:
    """The closed windows of one rank, the oldest first. ``readings``: of its GPU, by the names in ``causes``.

    ``size``: of its newest window; a rank that slows much changes it, and its windows before keep theirs.
    ``model``: of its GPU; empty if unknown. ``earlier_s``: own compute in windows of the size before.
    """

    rank: int
    size: int
    place: str = ""
    windows: tuple[Window, ...] = ()
    readings: Mapping[str, float] = field(default_factory=dict)
    earlier_s: float | None = None
    model: str = ""

    @property
    def usual_own_s(self) -> float | None:
        """The median of own compute over its windows; None without one."""
        return statistics.median(each.means["own_s"] for each in self.windows) if self.windows else None

    def with_window(self, size: int, place: str, window: Window) -> "RankWindows":
        """Return them with one more. Windows of another place, and those rolled back, are dropped."""
        known = [each.sized(self.size) for each in self.windows] if place == self.place else []
        earlier_s = self.earlier_s if place == self.place else None
        of_size = [each.means["own_s"] for each in known if each.size == self.size]
        if size != self.size and len(of_size) >= LEAST_BEFORE:
            earlier_s = statistics.median(of_size)
        kept = [each for each in known if each.last_step <= window.first]
        windows = (*kept, replace(window, size=size))[-MOST_WINDOWS:]
        return replace(self, size=size, place=place, windows=windows, earlier_s=earlier_s)

    def document(self) -> dict[str, Any]:
        earlier: dict[str, Any] = {} if self.earlier_s is None else {"earlier_s": self.earlier_s}
        earlier |= {"model": self.model} if self.model else {}
        windows = [each.document() | ({"size": each.size} if each.size != self.size else {}) for each in self.windows]
        return {"size": self.size, "place": self.place, "windows": windows, **earlier}

    @classmethod
    def of_document(cls, rank: int, document: Mapping[str, Any] | None) -> "RankWindows":
        if document is None:
            return cls(rank, 0)
        size, earlier_s = int(document["size"]), document.get("earlier_s")
        windows = tuple(Window.of_document(each).sized(size) for each in document["windows"])
        place, model = str(document["place"]), str(document.get("model", ""))
        return cls(rank, size, place, windows, earlier_s=earlier_s, model=model)


def size_of(step_s: float, window_s: float) -> int:
    """Return the steps of a window: the smallest power of two from ``LEAST_STEPS`` that takes ``window_s``."""
    size = LEAST_STEPS
    while size < MOST_STEPS and size * step_s < window_s:
        size *= 2
    return size


def _means_of(pace: Mapping[str, Any]) -> dict[str, float]:
    found = {name: pace.get(name) for name in _BY_RANK}
    found["work"], found["least_wait_s"] = _work_of(pace), pace.get("wait_s")
    found[PLAIN] = float(_count(pace.get("own_steps")) >= _count(pace.get("num_steps")))
    return {name: float(value) for name, value in found.items() if _is_number(value)}


def _longest_of(means: Mapping[str, float]) -> dict[str, float]:
    return {name: means[name] for name in _LONGEST}


def _work_of(pace: Mapping[str, Any]) -> float | None:
    """Return the work of a step: tokens with their padding, or else samples; None where the program reports neither."""
    tokens, padding = pace.get("tokens_per_step"), pace.get("padding")
    if _is_number(tokens) and tokens:
        share = padding if _is_number(padding) and padding < 1 else 0.0
        return float(tokens) / (1.0 - share)
    samples = pace.get("samples_per_step")
    return float(samples) if _is_number(samples) and samples else None


def _step_s(means: Mapping[str, float]) -> float:
    """Return a step's time, which is the same on all ranks that wait for each other."""
    return means["own_s"] + means.get("wait_s", 0.0)


def _is_in_scale(elapsed_s: float, size: int, window_s: float) -> bool:
    """Return whether a window took about as long as it should."""
    is_short = elapsed_s * _OUT_OF_SCALE < window_s and size < MOST_STEPS
    is_long = elapsed_s > 2 * window_s * _OUT_OF_SCALE and size > LEAST_STEPS
    return not is_short and not is_long


def _is_number(value: Any) -> TypeGuard[float]:
    """Return whether a reported value is a figure from 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and is_figure(value) and value >= 0


def _count(value: Any) -> int:
    return int(value) if _is_number(value) else 0
