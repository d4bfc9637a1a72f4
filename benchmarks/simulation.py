"""Events a second of the deterministic simulation, on one core: process time, since these machines are shared."""

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Size:
    seeds: int


SIZES: Final = Sizes(full=Size(seeds=100), smallest=Size(seeds=1))


def measure(size: Size) -> Groups:
    """Measure with random choices, as since the first of these figures, and by default: the planner in one world of
    four.
    """
    yield [_figure("simulation", "chance", 150_000, size.seeds)]
    yield [_figure("simulation, the planner in one world of four", "mixed", 50_000, size.seeds)]


def _figure(name: str, scheduler: str, bar: float, seeds: int) -> Figure:
    command = [sys.executable, "-m", "simulator", "--seeds", str(seeds), "--scheduler", scheduler]
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    answer = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # our own module
    wall_s = time.clock_gettime(time.CLOCK_MONOTONIC) - before
    found = re.search(r"([0-9,]+) events, .* ([0-9,]+) events/s", answer.stdout)
    if found is None:
        message = f"the simulator printed no figure: {answer.stdout[-200:]}"
        raise ValueError(message)
    events, rate = (float(text.replace(",", "")) for text in found.groups())
    peers = {"over the whole process /s": events / wall_s}
    return Figure(name, rate, "/s", bar, "higher", peers, basis=Basis.CPU)
