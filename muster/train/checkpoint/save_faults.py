"""Faults of a save, with place and rank: storage may be at fault, or the host.

| kind | cause |
|---|---|
| ``no_space`` | a full disk (ENOSPC) |
| ``read_only`` | a file system that was made read-only, as kernels do after errors (EROFS) |
| ``stale`` | a handle that the file server knows no more (ESTALE) |
| ``timeout`` | no answer in time (ETIMEDOUT) |
| ``refused`` | no right, or no quota left (EACCES, EPERM, EDQUOT; of an object store 401 and 403) |
| ``io`` | an error of the device, the file system, the connection or the store (EIO and similar) |
"""

from __future__ import annotations

import errno
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_REPORTED = 16
"""Most faults of one save that are reported: ranks that fail alike fail for one reason."""
_LONGEST_PLACE = 256
_REPORTED_FIELDS = frozenset({"rank", "kind", "place", "is_shared"})
_KIND_OF_ERRNO = {
    errno.ENOSPC: "no_space",
    errno.EROFS: "read_only",
    errno.ESTALE: "stale",
    errno.ETIMEDOUT: "timeout",
    errno.EACCES: "refused",
    errno.EPERM: "refused",
    errno.EDQUOT: "refused",
    **dict.fromkeys(
        (
            errno.EIO,
            errno.ENXIO,
            errno.ENODEV,
            errno.EREMOTEIO,
            errno.EUCLEAN,
            errno.ENOTCONN,
            errno.ECONNRESET,
            errno.ECONNREFUSED,
            errno.EHOSTDOWN,
            errno.EHOSTUNREACH,
            errno.ENETUNREACH,
        ),
        "io",
    ),
}
_SHARED = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "panfs", "smb3", "virtiofs", "wekafs"),
    }
)
_TAGGED = frozenset({"9p", "virtiofs"})
"""File systems that, like FUSE, may have any text as source, chosen at the mount."""
_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\"))


@dataclass(frozen=True)
class Place:
    """File system or bucket of a store.

    ``name``: the source of a file system that several hosts see, the mount of a host's own, else the bucket.
    """

    name: str
    is_shared: bool


@dataclass(frozen=True)
class SaveFault:
    """Fault of one rank. ``kind`` is empty if neither host nor storage is at fault: the state or another attempt is.

    ``is_name_taken``: the store has a generation of that name, so the save fails each time.
    """

    rank: int
    why: str
    kind: str = ""
    place: str = ""
    is_shared: bool = False
    is_name_taken: bool = False

    @classmethod
    def own(cls, rank: int, words: str) -> SaveFault:
        """Return a fault that is neither the host's nor the storage's."""
        return cls(rank, f"rank {rank}: {words}")

    @classmethod
    def of(cls, rank: int, fault: OSError, place: Place) -> SaveFault:
        kind, is_taken = _KIND_OF_ERRNO.get(fault.errno or 0, ""), isinstance(fault, FileExistsError)
        return cls(rank, f"rank {rank}: {fault}", kind, place.name, place.is_shared, is_taken)


def documents_of(faults: Sequence[SaveFault]) -> list[dict[str, Any]]:
    """Return the faults as the channel sends them: only faults that storage or a host may have caused."""
    blamed = [fault for fault in faults if fault.kind][:MAX_REPORTED]
    return [{name: value for name, value in asdict(fault).items() if name in _REPORTED_FIELDS} for fault in blamed]


def place_of(folder: Path, mounts: Iterable[str] | None = None) -> Place:
    """Return the file system of ``folder``. ``mounts``: lines as of /proc/self/mountinfo (proc(5)); None: this host's.

    If it cannot be found, the place is the folder's own and the host's alone, so that no shared storage is blamed. It
    never raises: the name of its file system must not end a training, after a save that failed or one that succeeded.
    """
    try:
        path = Path(folder).resolve()
        found = [mount for line in _mounts(mounts) if (mount := _mount(line)) and path.is_relative_to(mount[0])]
    except (OSError, ValueError, RuntimeError):  # also a loop of links, a NUL, or a working folder that was removed
        return Place(_plain_name(str(folder)), is_shared=False)
    if not found:
        return Place(_plain_name(str(path)), is_shared=False)
    at, kind, source = max(reversed(found), key=lambda mount: len(mount[0].parts))
    is_shared = _names_storage(source) if kind.startswith("fuse.") or kind in _TAGGED else kind in _SHARED
    return Place(_plain_name(source if is_shared else str(at)), is_shared)


def _mounts(given: Iterable[str] | None) -> Iterable[str]:
    """Return the lines of mounts. Names on Linux are bytes: invalid UTF-8 is decoded as in paths, so that both compare
    equal.
    """
    if given is not None:
        return given
    return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").split("\n")


def _names_storage(source: str) -> bool:
    """Return whether a source is a place elsewhere, and not the driver (``s3fs``), a tag, or a path or device of this
    host.
    """
    return (":" in source or "/" in source) and (not source.startswith("/") or source.startswith("//"))


def _mount(line: str) -> tuple[Path, str, str] | None:
    """Return mount point, type and source."""
    before, found, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    return (Path(_plain(fields[4])), rest[0], _plain(rest[1])) if found and len(fields) > 4 and len(rest) > 1 else None


def _plain(text: str) -> str:
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return text


def _plain_name(text: str) -> str:
    """Return a name as valid UTF-8, since it goes into JSON and a database."""
    return text.encode("utf-8", errors="replace").decode("utf-8")[:_LONGEST_PLACE]
