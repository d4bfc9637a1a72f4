"""A trace's rows as jobs: a table with a header, times in seconds."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

REQUIRED: Final = ("submit_s", "gpus", "duration_s")
OPTIONAL: Final = ("nodes", "vc", "tenant", "tier")
SURPLUS: Final = "fields beyond the header"
"""The key under which a row has them, in a list."""
MOST_FAULTS: Final = 10
"""Most bad rows that are named; the others are counted."""
MOST_SECONDS: Final = 10_000_000_000
"""Three centuries, so that times of the Unix era are accepted; sums of more would lose the seconds."""
_LONGEST_VALUE: Final = 40


class TraceError(ValueError):
    """The trace cannot be played. ``faults``: a sentence each, with line or row, column, value and what is accepted."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        rest = len(faults) - MOST_FAULTS
        super().__init__("; ".join([*faults[:MOST_FAULTS], *([f"and {rest} more"] if rest > 0 else [])]))


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace on ``num_nodes`` distinct nodes, ``gpus_per_node`` of each.

    ``tenant`` and ``tier`` are empty if the trace has none.
    """

    submit_s: float
    duration_s: float
    gpus: int
    num_nodes: int
    gpus_per_node: int
    tenant: str = ""
    tier: str = ""


def jobs_of(
    rows: Iterable[Mapping[str, object]],
    *,
    num_nodes: int,
    gpus_per_node: int,
    arrivals: float = 1.0,
    line_of: Callable[[Mapping[str, object]], int] | None = None,
) -> list[TraceJob]:
    """Return the jobs in order of submission, equal times in the given order.

    ``line_of``: the line of a file on which the newest row begins, so that faults name it; None: they name the row,
    from 1. If a row names no nodes, a job of fewer GPUs than a node runs in one node, and any other takes whole nodes.
    ``arrivals`` stretches the times of submission: 0.2 is five times denser.

    Raises:
        TraceError: names every row that is no job, or that this fleet could never run; or there is no row.
    """
    reader = _Reader(num_nodes, gpus_per_node, arrivals)
    found = []
    for number, row in enumerate(rows, 1):
        job = reader.job(f"row {number}" if line_of is None else f"line {line_of(row)}", row)
        if job is not None:
            found.append(job)
    if reader.faults:
        raise TraceError(reader.faults)
    if not found:
        raise TraceError(["the file has no row after the header: give a row for each job"])
    return sorted(found, key=lambda job: job.submit_s)


def require_columns(header: Iterable[str] | None) -> None:
    """Require the columns. Raises TraceError: a required column is missing, or a known one occurs twice."""
    told = list(header or ())
    twice = [name for name in (*REQUIRED, *OPTIONAL) if told.count(name) > 1]
    if twice:
        raise TraceError([f"the header has {', '.join(twice)} twice: give each column once"])
    there = set(told)
    missing = [name for name in REQUIRED if name not in there]
    if missing:
        accepted = f"the columns are {', '.join(REQUIRED)}, and optionally {', '.join(OPTIONAL)}"
        raise TraceError([f"the header lacks {', '.join(missing)}: {accepted}"])


class _Reader:
    def __init__(self, num_nodes: int, gpus_per_node: int, arrivals: float) -> None:
        self._num_nodes, self._gpus_per_node, self._arrivals = num_nodes, gpus_per_node, arrivals
        self.faults: list[str] = []

    def job(self, place: str, row: Mapping[str, object]) -> TraceJob | None:
        """Return the job of the row; None, with a fault recorded, if it is none."""
        num_faults = len(self.faults)
        if SURPLUS in row:
            self._fault(place, "has more fields than the header has columns: write decimals with a point, not a comma")
        submit_s = self._seconds(place, row, "submit_s")
        duration_s = self._seconds(place, row, "duration_s")
        gpus = self._count(place, row, "gpus", self._num_nodes * self._gpus_per_node)
        has_nodes = row.get("nodes") not in {None, ""}
        told_nodes = self._count(place, row, "nodes", self._num_nodes) if has_nodes else None
        tenant = self._name(place, row, "tenant") or self._name(place, row, "vc")
        tier = self._name(place, row, "tier")
        if len(self.faults) > num_faults:
            return None
        nodes, each = self._shape(place, gpus, told_nodes)
        if len(self.faults) > num_faults:
            return None
        return TraceJob(submit_s * self._arrivals, duration_s, gpus, nodes, each, tenant, tier)

    def _shape(self, place: str, gpus: int, stated_nodes: int | None) -> tuple[int, int]:
        """Return the number of nodes, and the GPUs of each."""
        size = self._gpus_per_node
        if stated_nodes is None:
            nodes, each = (1, gpus) if gpus < size else (-(-gpus // size), size)
        else:
            nodes, each = stated_nodes, -(-gpus // stated_nodes)
        if nodes > gpus:
            self._fault(place, f"nodes={nodes}: must be no more than gpus={gpus}")
        elif each > size:
            self._fault(place, f"gpus={gpus} on nodes={nodes}: a node of this fleet has {size} GPUs")
        elif nodes > self._num_nodes:
            most = f"{self._num_nodes}: {self._num_nodes * size:,} GPUs at most"
            self._fault(place, f"gpus={gpus}: takes {nodes} nodes, and this fleet has {most}")
        return nodes, each

    def _seconds(self, place: str, row: Mapping[str, object], name: str) -> float:
        text = str(row.get(name))
        try:
            value = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            value = math.nan
        if not 0 <= value <= MOST_SECONDS:
            self._fault(place, f"{name}={_shown(row.get(name))}: must be seconds, from 0 to {MOST_SECONDS:,}")
        return value

    def _count(self, place: str, row: Mapping[str, object], name: str, most: int) -> int:
        text = str(row.get(name)).strip()
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if value < 1:
            shown = _shown(row.get(name))
            self._fault(place, f"{name}={shown}: must be a whole number, from 1 to this fleet's {most:,}")
        return value

    def _name(self, place: str, row: Mapping[str, object], name: str) -> str:
        """Return the name; empty if the row has none."""
        text = str(row.get(name) or "")
        if not text.isprintable():
            self._fault(place, f"{name}={_shown(text)}: must be printable characters in one line")
        return text

    def _fault(self, place: str, words: str) -> None:
        self.faults.append(f"{place}: {words}")


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
