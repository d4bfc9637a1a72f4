"""The copies of bundles and environments on a host: which are whole, which was used last, what must go for a new one.

A copy is read whole, byte by byte, after it was fetched, in each new boot, and once a day; in between its files must
have the inodes, sizes, times, modes and owner that they had then. No program of a job can write a copy: it is root's,
or programs run as we do, and then they get copies of its files, which are read whole at each start.
A file's change time says nothing: each hard link of it changes that.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from muster.content.faults import ManifestError
from muster.content.manifest import Manifest, decode, digest_of
from muster.content.tree import remove_folder
from muster.durable import write_durably
from muster.sizes import size_in_words
from workers.host.content import assembled
from workers.host.content.chunks import files_of
from workers.host.content.drafts import FILE_MODES
from workers.host.content.failpoints import AFTER_PUBLISH, BEFORE_PUBLISH, failpoint
from workers.host.content.faults import NoRoomError
from workers.host.content.places import READ_AGAIN_S, Place, room_of
from workers.host.supervisor.files import NS_PER_S, boottime_ns, kernel_boot_id

_ENDING: Final = ".copy"
_GONE: Final = ".gone"


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``is_whole``: False while it is being fetched. ``boot_id``, ``read_at_ns``: when it was last read whole."""

    num_bytes: int
    is_whole: bool = False
    boot_id: str = ""
    read_at_ns: int = 0


FileState = tuple[int, int, int, int, int]
"""Inode, size, time of the last change in nanoseconds, mode and owner."""


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """A copy or draft on this host."""

    place: Place
    record: CopyRecord


def state_of(status: os.stat_result) -> FileState:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, status.st_uid


def record_of(place: Place) -> CopyRecord | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(place.file("copy").read_bytes(), type=CopyRecord)
    return None


def states_of(place: Place) -> tuple[FileState, ...]:
    """Return the states of a copy's files, in the order of its manifest; empty if they are not known."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.msgpack.decode(place.file("files").read_bytes(), type=tuple[FileState, ...])
    return ()


def manifest_of(place: Place) -> Manifest | None:
    """Return the manifest that is stored here, if it is the one of the digest."""
    with contextlib.suppress(OSError, ManifestError):
        content = place.file("manifest").read_bytes()
        if digest_of(content) == place.digest:
            return decode(content)
    return None


def is_as_read(place: Place, manifest: Manifest) -> bool:
    """Return whether the copy was read whole in this boot and not long ago, and no file has changed since."""
    record = record_of(place)
    if record is None or not record.is_whole or record.boot_id != kernel_boot_id():
        return False
    if boottime_ns() - record.read_at_ns > READ_AGAIN_S * NS_PER_S:
        return False
    entries, states = list(files_of(manifest)), states_of(place)
    if len(entries) != len(states):
        return False
    root = str(place.copy)
    try:
        return all(
            state_of(os.lstat(f"{root}/{entry.path}")) == state  # a Path costs five times as much
            for entry, state in zip(entries, states, strict=True)
        )
    except OSError:
        return False


def publish(place: Place, manifest: Manifest) -> None:
    """Make a finished draft, each byte of which was read or written by us, the copy."""
    states = []
    for entry in files_of(manifest):
        status = (place.draft / entry.path).lstat()
        if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != FILE_MODES[entry.kind]:
            raise OSError(f"{entry.path} was changed while the bundle was written")
        states.append(state_of(status))
    write_durably(place.file("files"), msgspec.msgpack.encode(states))
    failpoint(BEFORE_PUBLISH)
    place.draft.rename(place.copy)
    place.copy.chmod(0o555)
    failpoint(AFTER_PUBLISH)
    note(
        place,
        CopyRecord(
            num_bytes=place.bytes_of(manifest), is_whole=True, boot_id=kernel_boot_id(), read_at_ns=boottime_ns()
        ),
    )


def note(place: Place, record: CopyRecord) -> None:
    write_durably(place.file("copy"), msgspec.json.encode(record))


def copies_on(root: Path) -> Iterator[StoredCopy]:
    for path in root.glob(f"*/*{_ENDING}"):
        place = Place.named(path.with_name(path.name.removesuffix(_ENDING)))
        if (record := record_of(place)) is not None:
            yield StoredCopy(place, record)


def whole_copies(like: Place, most: int) -> Iterator[tuple[Path, Manifest]]:
    """Yield the copies of the same tenant and kind that were used last, with their manifests."""
    of = (like.tenant_id, like.kind)
    found = (one for one in copies_on(like.root) if (one.place.tenant_id, one.place.kind) == of)
    for place in whole_places(found)[:most]:
        if (manifest := manifest_of(place)) is not None:
            yield place.copy, manifest


def make_room(
    place: Place, num_bytes: int, num_new: int, *, most: int, least_free: int, used: Collection[Place]
) -> None:
    """Remove copies, the longest unused first, until the bundle has room; then note that it takes its bytes.

    ``num_new``: bytes that the disk must still take. ``most``: for all copies. ``used``: by attempts of this host.

    Raises:
        NoRoomError: the other copies are in use, or the disk is full of other things.
    """
    with room_of(place.root):
        total = _evict(place, used, num_new + least_free, most - num_bytes)
        if total + num_bytes > most:
            has = (
                f"{size_in_words(total)} of {size_in_words(most)} are in use, and {size_in_words(num_bytes)} are needed"
            )
            raise NoRoomError(f"this host's space for bundles and environments is full: {has}")
        _require_free(place.root, num_new, least_free)
        note(place, CopyRecord(num_bytes=num_bytes))


def make_free(place: Place, num_bytes: int, *, least_free: int, used: Collection[Place]) -> None:
    """Remove copies other than ``place`` until the disk takes so much and has ``least_free`` left.

    Raises:
        NoRoomError: the other copies are in use, or the disk is full of other things.
    """
    with room_of(place.root):
        _evict(place, used, num_bytes + least_free)
        _require_free(place.root, num_bytes, least_free)


def _evict(place: Place, used: Collection[Place], free_bytes: int, most: int | None = None) -> int:
    """Remove other copies, the longest unused first, until the disk has ``free_bytes`` and the others at most ``most``.

    Return the bytes of the ones that remain. The caller has the lock of ``room_of``.
    """
    others = sorted(
        (one for one in copies_on(place.root) if one.place != place), key=lambda one: one.place.last_use_ns()
    )
    total = sum(one.record.num_bytes for one in others)
    for one in others:
        if (most is None or total <= most) and _free_bytes(place.root) >= free_bytes:
            break
        if one.place not in used and _remove_unless_locked(one.place):
            total -= one.record.num_bytes
    return total


def _require_free(folder: Path, num_bytes: int, least_free: int) -> None:
    free = _free_bytes(folder)
    if free < num_bytes + least_free:
        needed = f"{size_in_words(num_bytes)} are needed and {size_in_words(least_free)} must stay free"
        raise NoRoomError(f"the disk of {folder} is full: it has {size_in_words(free)} free, {needed}")


def reopen(place: Place, manifest: Manifest) -> None:
    """Make a copy that may be damaged a draft again, in place of an older draft. The caller has locked it alone."""
    note(place, CopyRecord(num_bytes=place.bytes_of(manifest)))
    _set_aside(place.draft)
    place.copy.rename(place.draft)
    place.draft.chmod(0o700)


def remove(place: Place) -> None:
    """Remove a copy or draft, and what was assembled from it. The caller has locked it alone."""
    assembled.remove(place)
    _set_aside(place.copy)
    _set_aside(place.draft)
    for ending in ("copy", "files", "manifest"):
        place.file(ending).unlink(missing_ok=True)
    sweep(place.copy.parent)


def _set_aside(folder: Path) -> None:
    if folder.exists():
        folder.rename(folder.with_name(f"{folder.name}.{os.getpid()}.{boottime_ns()}{_GONE}"))


def sweep(folder: Path) -> None:
    """Remove the rest of what was to be removed."""
    for gone in folder.glob(f"*{_GONE}"):
        with contextlib.suppress(OSError):  # another process removes it at the same time
            remove_folder(gone)


def whole_places(found: Iterable[StoredCopy]) -> list[Place]:
    """Return the places of whole copies, the ones that were used last first."""
    return sorted((one.place for one in found if one.record.is_whole), key=Place.last_use_ns, reverse=True)


def _remove_unless_locked(place: Place) -> bool:
    with place.locked_if_free() as is_free:
        # Again, and locked: a program may have begun to run by it since the caller asked which are in use.
        if not is_free or assembled.is_in_use(place):
            return False
        remove(place)
        return True


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
