"""Generations in a folder, of one host or of a file system that all hosts see: ``generations`` describes the files."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from muster.train.checkpoint import fences, generations, plain_files, retention, skipped_ranges
from muster.train.checkpoint.save_faults import place_of
from muster.train.checkpoint.storage.late_files import LATE_ELSEWHERE_S, LATE_ON_SHARED_S
from muster.train.runtime.durable_files import sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from muster.train.checkpoint.generations import Generation, Pacing
    from muster.train.checkpoint.manifest import FileRecord, Manifest
    from muster.train.checkpoint.save_faults import Place
    from muster.train.runtime.durable_files import HashingFile


class DiskStore:
    """Store in one job's folder. ``stores`` describes what a ``Store`` guarantees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def place(self) -> Place:
        """The folder's place, read each time: without its mount the folder is another place."""
        return place_of(self.folder)

    @property
    def late_s(self) -> float:
        return LATE_ON_SHARED_S if self.place.is_shared else LATE_ELSEWHERE_S

    def begin(self, fence: int | None) -> int:
        begun = fences.begin(self.folder, fence)
        generations.abandon_older(self.folder, begun)
        return begun

    def write_skipped(self, fence: int, content: bytes) -> None:
        write_durably(self.folder / f"{skipped_ranges.NAME}-{fence}", content)
        sync_folder(self.folder)

    def read_skipped(self, fence: int) -> bytes | None:
        prefix = f"{skipped_ranges.NAME}-"
        numbers = [path.name.removeprefix(prefix) for path in self.folder.glob(f"{prefix}*")]
        newest = max((int(number) for number in numbers if _is_number(number) and int(number) <= fence), default=None)
        if newest is None:
            return None
        return plain_files.content(self.folder / f"{prefix}{newest}", skipped_ranges.MOST_BYTES)

    def highest_fence(self) -> int:
        return fences.highest_fence(self.folder)

    def list_generations(self) -> list[Generation]:
        return generations.list_generations(self.folder)

    def half_written(self) -> list[tuple[int, int]]:
        return generations.half_written(self.folder)

    def prepare(self, generation: Generation) -> None:
        final = self.folder / generation.name
        if final.exists():
            raise FileExistsError(errno.EEXIST, "exists already", str(final))
        generations.prepare(self.folder, generation)

    def abandon(self, generation: Generation) -> None:
        generations.abandon(self.folder, generation)

    def write_part(self, generation: Generation, rank: int, dump: Callable[[HashingFile], None]) -> FileRecord:
        return generations.write_part(self.folder, generation, rank, dump)

    def commit(self, about: Manifest) -> str:
        return generations.commit(self.folder, about)

    def read_manifest(self, generation: Generation) -> Manifest:
        return generations.read_manifest(self.folder, generation)

    def measured(self, generation: Generation) -> Manifest:
        return generations.measured(self.folder, generation)

    def verify(self, generation: Generation, pace: Pacing | None = None) -> Manifest:
        return generations.verify(self.folder, generation, pace)

    def verified_part(self, about: Manifest, file: FileRecord) -> bytes:
        return generations.verified_part(self.folder, about, file)

    def mark_good(self, generation: Generation) -> None:
        retention.mark(self.folder, generation, retention.GOOD)

    def good_ones(self) -> frozenset[str]:
        return retention.marked_ones(self.folder, retention.GOOD)

    def pin(self, generation: Generation, mark: str) -> None:
        retention.mark(self.folder, generation, mark)

    def unpin(self, generation: Generation, mark: str) -> None:
        retention.unmark(self.folder, generation, mark)

    def pinned_ones(self, mark: str) -> frozenset[str]:
        return retention.marked_ones(self.folder, mark)

    def mark_read(self, generation: Generation) -> None:
        retention.mark(self.folder, generation, retention.READ)

    def read_ones(self) -> dict[str, float]:
        return retention.read_ones(self.folder)

    def aged_ones(self, verified: Iterable[Generation], hold_s: float, now_unix_s: float) -> frozenset[str]:
        return retention.aged_ones(self.folder, verified, hold_s, now_unix_s)

    def remove(self, gone: Iterable[Generation]) -> None:
        retention.remove(self.folder, gone)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20
