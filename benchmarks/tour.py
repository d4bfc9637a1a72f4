"""The tour, several times in a row on fresh stacks: the times that it measures, and the memory of everything."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from muster.ports import free_port

TIMES = int(os.environ.get("TOURS", "3"))


def measure() -> list[Figure]:
    """Raises RuntimeError where a tour does not hold: then there is nothing to measure."""
    tours = [_tour(number) for number in range(TIMES)]
    figures = []
    for name, one in tours[0].items():
        values = [tour[name]["value"] for tour in tours]
        peers = {"median": statistics.median(values), "tours": float(TIMES)}
        figures.append(Figure(f"tour: {name}", max(values), one["unit"], one["bar"], peers=peers))
    return figures


def _tour(number: int) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="muster-tour-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        state = folder / "state"
        command = [
            sys.executable,
            "-m",
            "muster",
            "up",
            "--exit",
            "--state-dir",
            str(state),
            "--port",
            str(free_port()),
        ]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own module
        if answer.returncode != 0:
            message = f"tour {number + 1} did not hold:\n{answer.stdout[-4000:]}"
            raise RuntimeError(message)
        return {one["name"]: one for one in json.loads((state / "tour.json").read_text(encoding="utf-8"))}
