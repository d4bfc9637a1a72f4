"""The tour, several times in a row on fresh stacks: the times that it measures, and the memory of everything.

The watch tour follows: the bar for the whole of it is the same.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import small_stack
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from muster.ports import free_port

Command = Callable[[Path, int], list[str]]
"""The command of a tour, by its state folder and the port of its stack."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``is_whole``: else the tour's first step alone, on the smallest stack."""

    tours: int
    watch_tours: int
    is_whole: bool


SIZES: Final = Sizes(
    full=Size(tours=int(os.environ.get("TOURS", "3")), watch_tours=1, is_whole=True),
    smallest=Size(tours=1, watch_tours=0, is_whole=False),
)


def measure(size: Size) -> Groups:
    """Measure. Raises RuntimeError if a tour does not hold: then there is nothing to measure."""
    command = _whole if size.is_whole else partial(small_stack.command_of, "tour")
    yield _figures("tour", [_tour(number, command) for number in range(size.tours)])
    if size.watch_tours:
        yield _figures("watch tour", [_tour(number, _watching) for number in range(size.watch_tours)])


def _figures(kind: str, tours: Sequence[dict[str, dict[str, Any]]]) -> list[Figure]:
    """Return the longest or largest of each figure that the tours measured."""
    figures = []
    for name, one in tours[0].items():
        values = [tour[name]["value"] for tour in tours]
        peers = {"median": statistics.median(values), "tours": float(len(tours))}
        basis = Basis.CLOCK if one["unit"] == "s" else Basis.COUNT
        figures.append(Figure(f"{kind}: {name}", max(values), one["unit"], one["bar"], peers=peers, basis=basis))
    return figures


def _tour(number: int, command: Command) -> dict[str, dict[str, Any]]:
    """Run one tour on a fresh stack. ``command``: of its state folder and port. Returns its figures by name."""
    with tempfile.TemporaryDirectory(prefix="muster-tour-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        state = folder / "state"
        answer = subprocess.run(command(state, free_port()), capture_output=True, text=True, check=False)  # noqa: S603  # our own module
        if answer.returncode != 0:
            message = f"tour {number + 1} did not hold:\n{answer.stdout[-4000:]}\n{answer.stderr[-2000:]}"
            raise RuntimeError(message)
        return {one["name"]: one for one in json.loads((state / "tour.json").read_text(encoding="utf-8"))}


def _watching(state: Path, port: int) -> list[str]:
    return [*_whole(state, port), "--tour", "watch"]


def _whole(state: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "muster", "up", "--exit", "--state-dir", str(state), "--port", str(port)]
