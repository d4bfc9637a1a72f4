"""Forty kills in a tenant's round trip: each step of upload, fetch, build and collection twice; nothing torn is used.

``python -m benchmarks.roundtrip_kills 200`` makes so many and prints each; `make soak` does.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
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
    """One kill, and how many torn things were used after it."""

    case: str
    process: str
    point: str
    num_torn: int


SIZES: Final = Sizes(full=Size(40), smallest=Size(4))


def measure(size: Size) -> Groups:
    deaths = list(kills(shared_plane(), size.kills))
    peers = {f"kills in {name}": float(sum(one.case == name for one in deaths)) for name in CASES}
    torn = float(sum(one.num_torn for one in deaths))
    yield [
        Figure(
            "kills: torn bundles, environments or outputs used", torn, "things", 0.0, peers=peers, basis=Basis.COUNT
        ),
        Figure("kills", float(len(deaths)), "kills", float(size.kills), "higher", basis=Basis.COUNT),
    ]


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
        yield Death(name, process, armed, cases[name].die(process, armed, turn))


def _points_of(name: str, case: Case) -> list[tuple[str, str, str]]:
    return [(name, process, point) for process, point in case.POINTS]


def main(words: list[str]) -> int:
    """Kill as often as the first word says. Return the exit code: 1 where anything torn was used."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    num_torn, began = 0, time.monotonic()
    for at, death in enumerate(kills(shared_plane(), int(words[0])), start=1):
        num_torn += death.num_torn
        line = f"{time.monotonic() - began:6.1f} s {at:>4}  {death.case:<11} {death.process:<10} {death.point:<36}"
        print(f"{line} torn: {death.num_torn}", flush=True)
    print(f"torn bundles, environments or outputs used: {num_torn}")
    return 1 if num_torn else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
