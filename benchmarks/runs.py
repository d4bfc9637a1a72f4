"""Conditions of a result, in a file next to it: `results/runs/NAME.json` for `results/NAME.json`.

The result itself stays a list of {name, value, unit, bar, better, holds, peers} (and `basis`, `raw`), which other
programs read; commit, machine, date and calibration are of the whole run and stand in a file of their own. Neither has
a host's name nor a path.
"""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from agents.probes.interface import HostInventory, ProbeError
from agents.probes.nvml import open_nvml_probe
from benchmarks.calibration import REFERENCE_MS, slowness_of

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = Path(__file__).parent / "results"
RUNS: Final = "runs"
_CPU_INFO: Final = Path("/proc/cpuinfo")


class Row(Protocol):
    """Figure of any kind that has an entry in a result."""

    def row(self) -> dict[str, Any]:
        """Return the figure's entry."""
        ...


def write(name: str, figures: Sequence[Row], samples_ms: Sequence[float], results: Path = RESULTS) -> Path:
    """Write the figures, and their conditions next to them. Return the figures' path."""
    (results / RUNS).mkdir(parents=True, exist_ok=True)
    path = results / f"{name}.json"
    _write_json(path, [figure.row() for figure in figures])
    _write_json(run_path(name, results), run_of(samples_ms))
    return path


def run_path(name: str, results: Path = RESULTS) -> Path:
    return results / RUNS / f"{name}.json"


def run_of(samples_ms: Sequence[float]) -> dict[str, Any]:
    """Return the conditions of this run. ``is_clean``: the commit has all that was measured."""
    return {
        "commit": git("rev-parse", "HEAD"),
        "is_clean": not git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results"),
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": machine(),
        "calibration": {
            "reference_ms": REFERENCE_MS,
            "samples": len(samples_ms),
            "least_ms": round(min(samples_ms), 2),
            "median_ms": round(statistics.median(samples_ms), 2),
            "most_ms": round(max(samples_ms), 2),
            "slowness": round(slowness_of(statistics.median(samples_ms)), 3),
        },
        "load_average": round(os.getloadavg()[0], 2),
    }


def machine() -> dict[str, Any]:
    """Return the kind of this machine: a machine without an NVIDIA driver has no GPUs.

    The kernel's version is without what its builder added.
    """
    inventory = _gpu_inventory()
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "gpus": [gpu.model for gpu in inventory.gpus],
        "driver": inventory.driver_version,
        "torch": _version_of("torch"),
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
    }


def git(*arguments: str, root: Path = ROOT) -> str | None:
    """Return what git says, stripped; None where it fails, as outside a repository."""
    command = ["git", *arguments]
    try:
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603  # the git of the path
    except OSError:
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None


def _gpu_inventory() -> HostInventory:
    try:
        with closing(open_nvml_probe()) as probe:
            return probe.identify()
    except ProbeError:
        return HostInventory()


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
