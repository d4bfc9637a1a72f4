"""Forty kills in a tenant's round trip: each step of upload, fetch, build and collection twice; nothing torn is used.

``python -m benchmarks.roundtrip_kills 200`` makes so many and prints each; `make soak` does.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import structlog

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.roundtrip_deaths import Case, FetchDeaths, UploadDeaths
from benchmarks.roundtrip_part_deaths import BuildDeaths, CollectDeaths
from benchmarks.roundtrip_plane import Plane, shared_plane
from benchmarks.sizes import Sizes

CASES: Final[Mapping[str, Callable[[Plane, Path], Case]]] = {
    "upload": UploadDeaths,
    "fetch": FetchDeaths,
    "build": BuildDeaths,
    "collection": CollectDeaths,
}
MOST_HITS: Final = 2
"""A point that is met several times kills at another of its hits each time: a case has at least so many."""


@dataclass(frozen=True, slots=True)
class Size:
    kills: int


@dataclass(frozen=True, slots=True)
class Death:
    """One kill, and a sentence about each torn thing that was used after it. ``number``: from 1 on."""

    number: int
    case: str
    process: str
    point: str
    torn: Sequence[str]

    @property
    def faults(self) -> list[str]:
        """Return each torn thing with its kill."""
        return [f"kill {self.number}, {self.case}, {self.process} at {self.point}: {one}" for one in self.torn]


SIZES: Final = Sizes(full=Size(40), smallest=Size(4))


def measure(size: Size) -> Groups:
    deaths = [_shown(death) for death in kills(shared_plane(), size.kills)]
    peers = {f"kills in {name}": float(sum(one.case == name for one in deaths)) for name in CASES}
    faults = [fault for one in deaths for fault in one.faults]
    peers |= {f"torn by {fault}": float(faults.count(fault)) for fault in faults}
    torn = float(len(faults))
    yield [
        Figure(
            "kills: torn bundles, environments or outputs used", torn, "things", 0.0, peers=peers, basis=Basis.COUNT
        ),
        Figure("kills", float(len(deaths)), "kills", float(size.kills), "higher", basis=Basis.COUNT),
    ]


def _shown(death: Death) -> Death:
    for fault in death.faults:
        print(f"torn by {fault}", file=sys.stderr, flush=True)
    return death


def kills(plane: Plane, number: int) -> Iterator[Death]:
    """Kill so many times: all cases in turn, each at all of its points in turn.

    Raises RuntimeError: a point was not met, or the work did not continue.
    """
    cases: dict[str, Case] = {}
    for name, make in CASES.items():
        folder = plane.folder / f"deaths-{name}"
        folder.mkdir()
        cases[name] = make(plane, folder)
    points = zip(*(_points_of(name, case) for name, case in cases.items()), strict=True)
    flat = [point for group in points for point in group]
    for at, (name, process, point) in enumerate(islice(cycle(flat), number)):
        turn = 1 + at // len(flat)
        armed = point.format(1 + (turn - 1) % MOST_HITS)
        yield Death(at + 1, name, process, armed, cases[name].die(process, armed, turn))


def _points_of(name: str, case: Case) -> list[tuple[str, str, str]]:
    return [(name, process, point) for process, point in case.POINTS]


def main(words: list[str]) -> int:
    """Kill as often as the first word says. Return the exit code: 1 where anything torn was used."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    num_torn, began = 0, time.monotonic()
    for death in kills(shared_plane(), int(words[0])):
        num_torn += len(death.torn)
        what = f"{death.number:>4}  {death.case:<11} {death.process:<10} {death.point:<36}"
        print(f"{time.monotonic() - began:6.1f} s {what} torn: {len(death.torn)}", flush=True)
        _shown(death)
    print(f"torn bundles, environments or outputs used: {num_torn}")
    return 1 if num_torn else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
