"""Where a job's generations lie: a folder, or a prefix in an object store. Both keep the same promises.

A generation is complete or has no name; its files are never written again; who has an older fence commits nothing;
nothing is unpickled here. Whatever fails is an OSError that says where.
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
    from muster.train.checkpoint.storage.disk import HashingFile


class Store(Protocol):
    """One job's. ``str`` of it is its location. ``place``: the file system or bucket that it lies on."""

    @property
    def place(self) -> Place: ...

    @property
    def late_s(self) -> float:
        """For how long a file that was written may not be seen: one that is missing for longer is not there."""

    def begin(self, fence: int | None) -> int:
        """Begin under ``fence``, None being the next, and clear away what older attempts left half written.

        Raises StaleFenceError: a newer attempt has begun.
        """

    def highest_fence(self) -> int:
        """0 where no attempt has begun yet."""

    def list_generations(self) -> list[Generation]:
        """The complete ones, the newest first."""

    def half_written(self) -> list[tuple[int, int]]:
        """(step, fence) of what was never committed, the newest first; one of them may be in the making."""

    def prepare(self, generation: Generation) -> None:
        """A place to write it to."""

    def abandon(self, generation: Generation) -> None:
        """What was written of it goes, unless it was committed."""

    def write_part(self, generation: Generation, rank: int, dump: Callable[[HashingFile], None]) -> FileRecord:
        """One rank's file, with what ``dump`` writes."""

    def commit(self, about: Manifest) -> str:
        """Make it complete, all at once. Returns the manifest's SHA-256. Raises StaleFenceError."""

    def read_manifest(self, generation: Generation) -> Manifest:
        """Raises UnusableError, like all that follow with a generation to read.

        OSError, of an object store alone: it does not answer, or refuses, and might so for every generation.
        """

    def measured(self, generation: Generation) -> Manifest:
        """The manifest, after each file was found there in its size."""

    def verify(self, generation: Generation, pace: Pacing | None = None) -> Manifest:
        """The manifest, after every byte was read back equal to it. ``pace`` is told of each piece, and may wait."""

    def verified_part(self, about: Manifest, file: FileRecord) -> bytes:
        """One of its files, once these very bytes are proved to be those that were saved."""

    def mark_good(self, generation: Generation) -> None:
        """Its attempt did enough steps after it."""

    def good_ones(self) -> frozenset[str]:
        """The names of those so marked."""

    def pin(self, generation: Generation, mark: str) -> None:
        """``mark``: one of ``retention.PINS``. Retention never removes it from now on."""

    def unpin(self, generation: Generation, mark: str) -> None:
        """That mark goes, where it is there."""

    def pinned_ones(self, mark: str) -> frozenset[str]:
        """The names of those with that mark."""

    def mark_read(self, generation: Generation) -> None:
        """It was read again just now and is as it was saved: whoever comes next need not read it at once."""

    def read_ones(self) -> dict[str, float]:
        """By name, of those so marked when that was last: Unix seconds, by the store's clock."""

    def aged_ones(self, verified: Iterable[Generation], hold_s: float, now_unix_s: float) -> frozenset[str]:
        """Names of those committed ``hold_s`` ago or earlier, by the store's clock."""

    def remove(self, gone: Iterable[Generation]) -> None:
        """The manifest goes first: what a crash leaves half removed does not verify."""


def store_of(location: Path | S3Place, credentials_file: Path | None = None) -> Store:
    """Raises:
    MissingExtraError: it is an object store, and what it needs is not installed here.
    OSError: the credentials cannot be read.
    """
    if not isinstance(location, S3Place):
        return DiskStore(location)
    from muster.train.checkpoint.storage.bucket import Bucket  # noqa: PLC0415  # only who keeps them there
    from muster.train.checkpoint.storage.object_store import ObjectStore  # noqa: PLC0415

    return ObjectStore(Bucket(location, credentials_file))
