"""Stores of a job's generations: a folder, or a prefix in an object store, with the same guarantees.

A generation is complete or has no name; its files are never written again; an attempt with an older fence commits
nothing; nothing is unpickled here. Every failure is an OSError that names the place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from muster.train.checkpoint.storage.disk_store import DiskStore
from muster.train.checkpoint.storage.places import S3Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from muster.train.checkpoint.generations import Generation, Pacing
    from muster.train.checkpoint.manifest import FileRecord, Manifest
    from muster.train.checkpoint.save_faults import Place
    from muster.train.runtime.durable_files import HashingFile


class Store(Protocol):
    """Store of one job. ``str`` of it is its location. ``place``: the file system or bucket that holds it."""

    @property
    def place(self) -> Place: ...

    @property
    def late_s(self) -> float:
        """Seconds for which a written file may be invisible; a file that is missing for longer is absent."""

    def begin(self, fence: int | None) -> int:
        """Begin under ``fence``, None being the next, and remove the half-written generations of older attempts.

        Raises StaleFenceError: a newer attempt has begun.
        """

    def write_skipped(self, fence: int, content: bytes) -> None:
        """Write an attempt's record of skipped samples (``skipped_ranges``), in place of one that it wrote before."""

    def read_skipped(self, fence: int) -> bytes | None:
        """Return the record of the newest attempt up to ``fence``; None if none has written one."""

    def highest_fence(self) -> int:
        """Return the highest fence; 0 if no attempt has begun yet."""

    def list_generations(self) -> list[Generation]:
        """Return the complete generations, the newest first."""

    def half_written(self) -> list[tuple[int, int]]:
        """Return (step, fence) of generations that were never committed, the newest first; one may be in progress."""

    def prepare(self, generation: Generation) -> None:
        """Make a place to write the generation to. Raises FileExistsError if it was committed before."""

    def abandon(self, generation: Generation) -> None:
        """Remove the written files of a generation, unless it was committed."""

    def write_part(self, generation: Generation, rank: int, dump: Callable[[HashingFile], None]) -> FileRecord:
        """Write one rank's file, with the content of ``dump``."""

    def commit(self, about: Manifest) -> str:
        """Complete a generation, all at once. Returns the manifest's SHA-256. Raises StaleFenceError."""

    def read_manifest(self, generation: Generation) -> Manifest:
        """Return a generation's manifest. Raises UnusableError, like all methods below that read a generation.

        OSError, of an object store alone: it does not answer, or refuses, and might so for every generation.
        """

    def measured(self, generation: Generation) -> Manifest:
        """Return the manifest, after each file was found with its size."""

    def verify(self, generation: Generation, pace: Pacing | None = None) -> Manifest:
        """Return the manifest, after every byte was read back equal to it. ``pace`` is called for each piece, and may
        wait.
        """

    def verified_part(self, about: Manifest, file: FileRecord) -> bytes:
        """Return one file, after these very bytes were verified as saved."""

    def mark_good(self, generation: Generation) -> None:
        """Mark a generation as good: its attempt did enough steps after it."""

    def good_ones(self) -> frozenset[str]:
        """Return the names of generations that are marked as good."""

    def pin(self, generation: Generation, mark: str) -> None:
        """Mark a generation with ``mark``, one of ``retention.PINS``: retention never removes it from now on."""

    def unpin(self, generation: Generation, mark: str) -> None:
        """Remove that mark if it exists."""

    def pinned_ones(self, mark: str) -> frozenset[str]:
        """Return the names of generations with that mark."""

    def mark_read(self, generation: Generation) -> None:
        """Mark a generation as read again just now and found as saved: a later attempt need not read it at once."""

    def read_ones(self) -> dict[str, float]:
        """Return the times of the last reading by name: Unix seconds, by the store's clock."""

    def aged_ones(self, verified: Iterable[Generation], hold_s: float, now_unix_s: float) -> frozenset[str]:
        """Return the names of generations that were committed ``hold_s`` ago or earlier, by the store's clock."""

    def remove(self, gone: Iterable[Generation]) -> None:
        """Remove generations, each manifest first: one that a crash leaves half removed does not verify."""


def store_of(location: Path | S3Place, credentials_file: Path | None = None) -> Store:
    """Return the store of a location.

    Raises:
        MissingExtraError: it is an object store, and a package that it needs is not installed here.
        OSError: the credentials cannot be read.
    """
    if not isinstance(location, S3Place):
        return DiskStore(location)
    from muster.train.checkpoint.storage.bucket import Bucket  # noqa: PLC0415  # only who keeps them there
    from muster.train.checkpoint.storage.object_store import ObjectStore  # noqa: PLC0415

    return ObjectStore(Bucket(location, credentials_file))
