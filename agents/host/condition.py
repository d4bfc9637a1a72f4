"""The host's own condition, by the names of ``state_readings.HOST_STATE``: pressure, disks, driver."""

import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from agents.host.files import read_text
from agents.probes.deadline import Callers, NoAnswerError

DEADLINE_S: Final = 2.0
"""Longest time that a file system or a network card may take."""
_PSI: Final = {"cpu_pressure": ("cpu", "some"), "memory_pressure": ("memory", "full"), "io_pressure": ("io", "full")}
_AVG60: Final = re.compile(r"^(some|full)\s[^\n]*?\bavg60=(\d{1,3}(?:\.\d{1,4})?)(?=\s|$)", re.MULTILINE)
_VERSION: Final = re.compile(r"\d{1,4}(?:\.\d{1,4}){1,3}")
_LIBRARY: Final = re.compile(r"^\S[^\n]*\s(/\S*/libnvidia-ml\.so\S*)$", re.MULTILINE)
_LIBRARY_NAME: Final = "libnvidia-ml.so.1"
_MAPS_BYTES: Final = 4 << 20


def pressure(proc: Path) -> dict[str, float]:
    """Return shares of the last minute, 0 to 1. Kernels without PSI have none."""
    found: dict[str, float] = {}
    for name, (resource, line) in _PSI.items():
        text = read_text(proc / "pressure" / resource) or ""
        for match in _AVG60.finditer(text):
            if match[1] == line:
                found[name] = min(1.0, float(match[2]) / 100)
    return found


def disks(folders: Iterable[Path], callers: Callers) -> dict[str, float]:
    """Return the free space of the folder with the least share left. A missing folder does not count.

    Empty where a file server does not answer: it may be the fullest. Blocks that are kept for root are not free.
    """
    answers = callers.all_within(DEADLINE_S, {str(folder): partial(os.statvfs, folder) for folder in folders})
    if any(isinstance(answer, NoAnswerError) for answer in answers.values()):
        return {}
    found = [
        (answer.f_bavail / answer.f_blocks, float(answer.f_bavail * answer.f_frsize))
        for answer in answers.values()
        if isinstance(answer, os.statvfs_result) and answer.f_blocks > 0
    ]
    if not found:
        return {}
    fraction, free_bytes = min(found)
    room = {"disk_free_fraction": fraction, "disk_free_bytes": free_bytes}
    inodes = [
        answer.f_favail / answer.f_files
        for answer in answers.values()
        if isinstance(answer, os.statvfs_result) and answer.f_files > 0
    ]
    return {**room, "inodes_free_fraction": min(inodes)} if inodes else room


def drivers(sys: Path, proc: Path) -> dict[str, float]:
    """Return whether nvidia.ko is of another version than the NVML on disk, as after an upgrade without a reboot.

    NVML's is the version in the name of the file that this process's library is a link to by now; without a library in
    use, or without a module, there is nothing to compare.
    """
    module = _VERSION.fullmatch((read_text(sys / "module" / "nvidia" / "version", 64) or "").strip())
    library = library_version(proc)
    if module is None or library is None:
        return {}
    return {"drivers": float(module[0] != library)}


def library_version(proc: Path) -> str | None:
    match = _LIBRARY.search(read_text(proc / "self" / "maps", _MAPS_BYTES) or "")
    if match is None:
        return None
    try:
        target = (Path(match[1]).parent / _LIBRARY_NAME).resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    found = _VERSION.search(target.name.partition(".so.")[2])
    return None if found is None else found[0]
