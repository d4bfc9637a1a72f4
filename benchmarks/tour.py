"""The tour, several times in a row on fresh stacks: the times that it measures, and the memory of everything."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import small_stack
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from muster.ports import free_port


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``is_whole``: else the tour's first step alone, on the smallest stack."""

    tours: int
    is_whole: bool


SIZES: Final = Sizes(
    full=Size(tours=int(os.environ.get("TOURS", "3")), is_whole=True), smallest=Size(tours=1, is_whole=False)
)


def measure(size: Size) -> Groups:
    """Measure. Raises RuntimeError if a tour does not hold: then there is nothing to measure."""
    tours = [_tour(number, size) for number in range(size.tours)]
    figures = []
    for name, one in tours[0].items():
        values = [tour[name]["value"] for tour in tours]
        peers = {"median": statistics.median(values), "tours": float(size.tours)}
        basis = Basis.CLOCK if one["unit"] == "s" else Basis.COUNT
        figures.append(Figure(f"tour: {name}", max(values), one["unit"], one["bar"], peers=peers, basis=basis))
    yield figures


def _tour(number: int, size: Size) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="muster-tour-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        state = folder / "state"
        answer = subprocess.run(_command(size, state), capture_output=True, text=True, check=False)  # noqa: S603  # our own module
        if answer.returncode != 0:
            message = f"tour {number + 1} did not hold:\n{answer.stdout[-4000:]}\n{answer.stderr[-2000:]}"
            raise RuntimeError(message)
        return {one["name"]: one for one in json.loads((state / "tour.json").read_text(encoding="utf-8"))}


def _command(size: Size, state: Path) -> list[str]:
    if not size.is_whole:
        return small_stack.command_of("tour", state, free_port())
    command = [sys.executable, "-m", "muster", "up", "--exit"]
    return [*command, "--state-dir", str(state), "--port", str(free_port())]
