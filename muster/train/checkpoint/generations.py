"""Generations of a checkpoint on disk: named by step and fence, complete or absent, and verified before use.

A generation is what one attempt saved at one step: one file a rank, and ``MANIFEST.json`` with the size and SHA-256
of each. Its files are never written again. Nothing here unpickles anything.

Two ranks save step 40 in the attempt with fence 7. After each call, ``<folder>/step-00000040`` holds::

    prepare               .gen-7.partial
    write_part of rank 0  .gen-7.partial/rank-00000.pt
    write_part of rank 1  .gen-7.partial/rank-00000.pt  .gen-7.partial/rank-00001.pt
    commit                gen-7/MANIFEST.json  gen-7/rank-00000.pt  gen-7/rank-00001.pt

``commit`` acts in this order, as each step relies on those before it:

1. Each rank's file must have the size that its rank reported. One that is missing was written to another file system.
2. The manifest is written, and the partial folder is synced: from here on, its content survives a loss of power.
3. The fence is locked and read. If an attempt with fence 8 has begun, fence 7 may not commit.
4. The folder is renamed from ``.gen-7.partial`` to ``gen-7``. This is the commit: it happens whole or not at all.
5. The folders above are synced, so that the name survives a loss of power before anyone learns of the generation.

If the host stops before step 4, only ``.gen-7.partial`` remains: it is never listed, and the next attempt removes it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.train.checkpoint import fences, manifest, plain_files
from muster.train.checkpoint.manifest import MANIFEST, MOST_MANIFEST_BYTES, FileRecord, Manifest, UnusableError
from muster.train.runtime.durable_files import HashingFile, sync_folder, write_durably, writing_durably
from muster.train.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Pacing = Callable[[int], None]
    """Callback that gets the number of bytes just read, and may pause the read for more urgent work."""

_PIECE_BYTES = 1 << 20
_NAME = re.compile(r"step-(\d{1,18})/gen-(\d{1,20})")
_STEP = re.compile(r"step-(\d{1,18})")
_PARTIAL = re.compile(r"\.gen-(\d{1,20})\.partial")


@dataclass(frozen=True, order=True)
class Generation:
    step: int
    fence: int

    @property
    def name(self) -> str:
        return f"step-{self.step:08d}/gen-{self.fence}"

    @classmethod
    def named(cls, name: str) -> Generation | None:
        found = _NAME.fullmatch(name)
        return None if found is None else cls(int(found[1]), int(found[2]))


def list_generations(folder: Path) -> list[Generation]:
    """Return the generations that are complete by name, the newest first."""
    found = [
        generation
        for path in folder.glob("step-*/gen-*")
        if (generation := Generation.named(f"{path.parent.name}/{path.name}")) is not None
        and path == folder / generation.name
    ]
    return sorted(found, reverse=True)


def candidates(
    found: Sequence[Generation], wanted: str | None, refused: frozenset[str], *, may_be_newer: bool = False
) -> list[Generation]:
    """Return the generations to try, in order: ``wanted``, then older ones; without ``wanted``, all. Never a refused
    one.

    ``may_be_newer``: ``wanted`` is only the newest that was reported, so newer ones are tried first.
    """
    chosen = None if wanted is None or may_be_newer else Generation.named(wanted)
    allowed = [generation for generation in found if generation.name not in refused]
    return [generation for generation in allowed if chosen is None or generation <= chosen]


def partial_of(folder: Path, generation: Generation) -> Path:
    """Return the folder of a generation while it is being written."""
    return folder / f"step-{generation.step:08d}" / f".gen-{generation.fence}.partial"


def prepare(folder: Path, generation: Generation) -> None:
    """Make an empty place to write a generation to. Raises OSError."""
    place = partial_of(folder, generation)
    if place.exists():
        shutil.rmtree(place)
    failpoint("save.prepare")
    place.mkdir(parents=True)


def abandon(folder: Path, generation: Generation) -> None:
    _remove(partial_of(folder, generation))


def abandon_older(folder: Path, fence: int) -> None:
    """Remove the half-written generations of attempts before this one, which may commit nothing any more."""
    for place in folder.glob("step-*/.gen-*.partial"):
        found = _PARTIAL.fullmatch(place.name)
        if found is not None and int(found[1]) < fence:
            _remove(place)


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):  # the disk may have failed; that must not end the rank that cleans up
        if not any(place.parent.glob("*")):
            shutil.rmtree(place.parent, ignore_errors=True)


def write_part(folder: Path, generation: Generation, rank: int, dump: Callable[[HashingFile], None]) -> FileRecord:
    """Write one rank's file with the content of ``dump``. Raises OSError, such as for a full disk."""
    name = manifest.file_name(rank)
    with writing_durably(partial_of(folder, generation) / name) as file:
        dump(file)
    return FileRecord(name, rank, file.size, file.sha256)


def commit(folder: Path, about: Manifest) -> str:
    """Give the partial generation its name, after all of it is on disk. Returns the manifest's SHA-256.

    Raises:
        StaleFenceError: a newer attempt has begun.
        OSError: the disk; or a rank's file is not here, because its host writes elsewhere; or the name is taken.
    """
    generation = Generation(about.step, about.fence)
    partial, final = partial_of(folder, generation), folder / generation.name
    for file in about.files:
        if (partial / file.name).stat().st_size != file.size:
            raise OSError(errno.EIO, f"{file.name} has another size than was written", str(partial))
    content = manifest.dump(about)
    write_durably(partial / MANIFEST, content)
    sync_folder(partial)
    # Under the lock no newer attempt can begin between the check of the fence and the rename.
    with fences.holding(folder):
        highest = fences.highest_fence(folder)
        if highest > about.fence:
            raise fences.StaleFenceError(f"fence {highest} has begun, {about.fence} may commit nothing any more")
        if final.exists():
            raise FileExistsError(errno.EEXIST, "exists already", str(final))
        failpoint("commit.before_rename")
        partial.rename(final)
        failpoint("commit.renamed")
    sync_folder(final.parent)
    sync_folder(folder)
    return hashlib.sha256(content).hexdigest()


def verify(folder: Path, generation: Generation, pace: Pacing | None = None) -> Manifest:
    """Return the manifest, after every file was read back from the disk equal to it. ``pace`` is called for each piece.

    Raises:
        UnusableError: a file is missing, of another size, or differs in one byte.
    """
    about = read_manifest(folder, generation)
    for file in about.files:
        compare(file, *_digest(folder / generation.name / file.name, file, pace))
    return about


def measured(folder: Path, generation: Generation) -> Manifest:
    """Return the manifest, after each file was found with its size. The content was not read: see ``verify``.

    Raises:
        UnusableError: a file is missing, or of another size.
    """
    about = read_manifest(folder, generation)
    for file in about.files:
        path = folder / generation.name / file.name
        try:
            size = plain_files.size_of(path)
        except OSError as fault:
            raise _unreadable(path, fault) from fault
        compare(file, size, file.sha256)
    return about


def half_written(folder: Path) -> list[tuple[int, int]]:
    """Return (step, fence) of generations that were never committed, the newest first; one may be in progress."""
    found = []
    for place in folder.glob("step-*/.gen-*.partial"):
        step, fence = _STEP.fullmatch(place.parent.name), _PARTIAL.fullmatch(place.name)
        if step is not None and fence is not None:
            found.append((int(step[1]), int(fence[1])))
    return sorted(found, reverse=True)


def read_manifest(folder: Path, generation: Generation) -> Manifest:
    """Return a generation's manifest. Raises UnusableError."""
    path = folder / generation.name / MANIFEST
    try:
        content = plain_files.content(path, MOST_MANIFEST_BYTES)
    except OSError as fault:
        raise _unreadable(path, fault) from fault
    return require_about(manifest.parse(content), generation)


def require_about(about: Manifest, generation: Generation) -> Manifest:
    """Return the manifest. Raises UnusableError if it is another generation's."""
    if (about.step, about.fence) != (generation.step, generation.fence):
        raise UnusableError(f"its {MANIFEST} is about step {about.step}, fence {about.fence}")
    return about


def verified_parts(folder: Path, about: Manifest) -> Iterator[bytes]:
    """Yield each rank's file, one at a time, only after these very bytes were verified as saved.

    Raises:
        UnusableError: at the first that is not.
    """
    for file in about.files:
        yield verified_part(folder, about, file)


def verified_part(folder: Path, about: Manifest, file: FileRecord) -> bytes:
    """Return one file, after these very bytes were verified as saved. Raises UnusableError."""
    path = folder / Generation(about.step, about.fence).name / file.name
    try:
        with plain_files.opened(path) as opened:
            require_size(file, os.fstat(opened.fileno()).st_size)
            content = plain_files.read(opened, file.size)
    except OSError as fault:
        raise _unreadable(path, fault) from fault
    compare(file, len(content), hashlib.sha256(content).hexdigest())
    return content


def compare(file: FileRecord, size: int, sha256: str) -> None:
    """Raise UnusableError if size or hash differ from the saved file's."""
    require_size(file, size)
    if sha256 != file.sha256:
        raise UnusableError(f"{file.name} differs from what was saved")


def require_size(file: FileRecord, size: int) -> None:
    """Raise UnusableError if the size differs from the saved file's: then no byte of it is read."""
    if size != file.size:
        raise UnusableError(f"{file.name} holds {size} bytes instead of {file.size}")


def _digest(path: Path, saved: FileRecord, pace: Pacing | None) -> tuple[int, str]:
    """Return size and SHA-256, read from the disk rather than from the cache that the write left.

    Raises UnusableError if it has another size than was saved, before a byte is read.
    """
    digest = hashlib.sha256()
    size = 0
    try:
        with plain_files.opened(path) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            require_size(saved, os.fstat(file.fileno()).st_size)
            while size <= saved.size and (piece := file.read(_PIECE_BYTES)):
                size += len(piece)
                digest.update(piece)
                if pace is not None:
                    pace(len(piece))
    except OSError as fault:
        raise _unreadable(path, fault) from fault
    return size, digest.hexdigest()


def _unreadable(path: Path, fault: OSError) -> UnusableError:
    if isinstance(fault, plain_files.NoPlainFileError):
        return UnusableError(f"{path.name} is no regular file")
    is_missing = isinstance(fault, (FileNotFoundError, NotADirectoryError, IsADirectoryError))
    return UnusableError(f"{path.name} cannot be read: {fault.strerror}", is_damage=is_missing, is_missing=is_missing)
