"""Preflight of the datasets that a job names, in a process of its own, as the job's user.

It reads one JSON list on stdin, an entry a dataset (``name``, ``path``, ``manifest``, ``verify``). For each dataset it
writes one JSON line as soon as the result is known: ``{"name": …, "why": …}``, without ``why`` if there is no fault.
Before it, ``{"goes_on": …}`` follows from time to time as files are checked: it distinguishes much work from storage
that hangs.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.train.data import dataset_manifest as manifests
from muster.train.data.dataset_manifest import DATASET, DatasetError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from muster.train.data.dataset_manifest import DataFile, Difference

MANIFEST_BYTES_MAX = 64 << 20
"""Size of a manifest of some 400,000 files: more cannot be checked in the time that a start may wait."""
_ADDRESS_BYTES_MAX = 3 << 30
"""Memory for the largest manifest (0.5 GiB, measured), and for what threads reserve and do not use."""
_MOST_NAMED = 3
_REPORTED_EVERY_S = 0.25
_AT_A_TIME = 64
"""Files whose sizes one thread checks before it takes others."""


class Progress:
    """Report that the work proceeds, with a limited rate. Several threads use it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reported_s = float("-inf")
        self._lock = threading.Lock()

    def note(self) -> None:
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._reported_s >= _REPORTED_EVERY_S:
                self._reported_s = now_s
                _report({"goes_on": self._name})


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES_MAX, _ADDRESS_BYTES_MAX))
    for dataset in json.load(sys.stdin):
        why = fault_of(dataset, Progress(dataset["name"]))
        _report({"name": dataset["name"], **({"why": why} if why else {})})
    os._exit(0)


def fault_of(dataset: dict[str, Any], progress: Progress) -> str | None:
    """Return the fault of a dataset in one sentence, or None."""
    path = Path(dataset["path"])
    try:
        path.stat()
    except OSError as fault:
        return f"{path} is not there: {fault.strerror}"
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        return f"{path} is closed to the job's user"
    source = path / DATASET if dataset["manifest"] is None else Path(dataset["manifest"])
    if dataset["manifest"] is None and not source.is_file():
        return None
    try:
        manifest = manifests.read(path, source, most_bytes=MANIFEST_BYTES_MAX)
        progress.note()
        found = list(_differences(path, manifest.files, progress, reads_all=dataset["verify"] != "sizes"))
    except DatasetError as fault:
        return str(fault)
    except MemoryError:
        return f"{source} takes more memory than a preflight may have: pack the dataset into fewer files"
    return _in_words(path, found, len(manifest.files)) if found else None


def _differences(path: Path, files: Sequence[DataFile], progress: Progress, *, reads_all: bool) -> Iterator[Difference]:
    at_a_time = 1 if reads_all else _AT_A_TIME

    def differences_from(first: int) -> list[Difference]:
        found = []
        for file in files[first : first + at_a_time]:
            differs = manifests.difference(path, file, progress.note) if reads_all else _of_size(path, file, progress)
            found += [] if differs is None else [differs]
        return found

    with ThreadPoolExecutor(manifests.num_workers()) as pool:
        for found in pool.map(differences_from, range(0, len(files), at_a_time)):
            yield from found


def _of_size(path: Path, file: DataFile, progress: Progress) -> Difference | None:
    found = manifests.size_difference(path, file)
    progress.note()
    return found


def _in_words(path: Path, found: list[Difference], num_files: int) -> str:
    named = "; ".join(f"{each.path} is {each.what}: {each.why}" for each in found[:_MOST_NAMED])
    more = "" if len(found) <= _MOST_NAMED else f"; and {len(found) - _MOST_NAMED:,} more of {num_files:,} files"
    return f"{path} is not as its manifest says: {named}{more}"


def _report(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
