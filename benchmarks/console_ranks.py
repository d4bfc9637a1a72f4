"""CPU time of the pages of one job over the whole fleet: its debug page, charts and file by rank, and its own page."""

from dataclasses import dataclass
from typing import Final

import httpx

from benchmarks.console_gang import fill
from benchmarks.console_stage import GPUS_A_NODE, Stage, cost_ms, request, shared_stage, stage
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes

PAGE_MS: Final = 500.0
"""A person who follows a slow rank opens a few pages a minute; at this cost each uses less than a hundredth of a core.

Reading own compute out of 100,000 stored reports takes more than half of it; all else must fit into the rest.
"""
JOB_PAGE_MS: Final = 1_000.0
"""The page of the whole job has a dozen parts, and is opened less often."""
FILE_MS: Final = 8_000.0
"""All figures of all ranks, 24 MB: a file that is written once."""
_PAGES: Final = {
    "debug page": ("/debug", PAGE_MS),
    "debug page by memory, the least first": ("/debug?sort=memory_mib&order=asc", PAGE_MS),
    "debug page of the slow ranks": ("/debug?only=slow", PAGE_MS),
    "debug page of one host": ("/debug?host=1", PAGE_MS),
    "charts of the debug page, with one rank": ("/debug.json?rank=7", PAGE_MS),
    "readings of GPUs": ("/readings.json", PAGE_MS),
    "curves of the job": ("/training.json", PAGE_MS),
    "page of the job": ("", JOB_PAGE_MS),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``ranks``: of the job, which has every GPU of the fleet. ``times``: each page in a row.

    ``shares_stage``: use the same control plane as the suite's other parts, which are over by then.
    """

    ranks: int
    times: int
    windows: int
    shares_stage: bool


SIZES: Final = Sizes(
    full=Size(ranks=100_000, times=3, windows=4, shares_stage=False),
    smallest=Size(ranks=64, times=1, windows=1, shares_stage=True),
)


def measure(size: Size) -> Groups:
    with (shared_stage if size.shares_stage else stage)(size.ranks) as ours:
        where = f"/console/jobs/{fill(ours.engine, size.ranks)}"
        for name, (path, bar_ms) in _PAGES.items():
            yield [_figure(ours, f"{name} of {size.ranks:,} ranks", f"{where}{path}", bar_ms, size)]
        once = Size(size.ranks, times=1, windows=1, shares_stage=size.shares_stage)
        yield [_figure(ours, f"file of {size.ranks:,} ranks", f"{where}/debug.csv", FILE_MS, once)]


def _figure(ours: Stage, name: str, path: str, bar_ms: float, size: Size) -> Figure:
    with httpx.Client(base_url=ours.url, headers=ours.by_cookie, timeout=600) as client:
        spent_ms = cost_ms((ours.pid, ours.postgres.pid), request(client, path), times=size.times, windows=size.windows)
        kilobytes = len(client.get(path).content) / 1_000
    peers = {"hosts": size.ranks / GPUS_A_NODE, "KB": kilobytes}
    return Figure(f"CPU of the {name}", spent_ms, "ms", bar_ms, peers=peers, basis=Basis.CPU)
