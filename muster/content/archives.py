"""A folder of many small files as a few archives: in a store each file costs a request, and each host another one.

Archives are tar files, and the same for the same folder on each machine: members in the order of their paths, without
owners and times. Each of the largest groups of files has an archive of its own. Since a file's chunks begin with the
file, two folders share the chunks of such a group whatever else differs between them.

An archive may come from elsewhere. Nothing is written that a folder of plain files could not have: no link, no path out
of it, no file twice, and the archive must end where its last member does.
"""

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from muster.content.faults import ArchiveError, FolderError, shown
from muster.content.manifest import CHUNK_BYTES, Kind, path_fault
from muster.content.read import changed, open_file
from muster.content.scan import Found, Limits, scan, state_of
from muster.plain_files import open_plain

_OTHERS: Final = "others.tar"
_GROUPS: Final = "groups"
_MEMBER_MODES: Final = {Kind.FILE: 0o444, Kind.PROGRAM: 0o555, Kind.FOLDER: 0o755}
_MODES_OF_TYPES: Final = {tarfile.REGTYPE: frozenset({0o444, 0o555}), tarfile.DIRTYPE: frozenset({0o755})}
_HEADERS: Final = frozenset({"path", "size"})
"""What may stand before a member's own header: a path or size that is too long for it."""
_END: Final = bytes(2 * tarfile.BLOCKSIZE)
_ALL: Final = Limits(max_bytes=1 << 50, max_files=10_000_000)
_DRAFT_MODE: Final = 0o600
_OPENS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def pack(folder: Path, target: Path, group_of: Callable[[str], str | None]) -> None:
    """Write all of ``folder`` into archives in the new folder ``target``.

    ``group_of``: returns a name for the group of a path. A group of at least one chunk has its own archive.

    Raises:
        FolderError: a path cannot stand in an archive, or changes meanwhile.
    """
    found = scan(folder, _ALL, takes_all=True).found
    target.mkdir(mode=0o700)
    for name, members in _archives(found, group_of).items():
        path = target / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("xb") as archive:
            for one in members:
                _add(archive, folder, one)
            archive.write(_END)


def unpack(archives: Iterable[Path], target: Path) -> None:
    """Write all that is in ``archives`` below ``target``, which may be there, and has nothing of it yet.

    Raises:
        ArchiveError: it is no archive, or has what ``pack`` writes into none.
        OSError: the disk fails.
    """
    for path in archives:
        _unpack_one(path, target)


def is_unpacked(archives: Iterable[Path], folder: Path) -> bool:
    """Return whether each file of ``archives`` is in the folder, byte by byte. Other files may be there too.

    Raises ArchiveError: it is no archive.
    """
    for path in archives:
        with path.open("rb") as archive:
            for member in _members(archive):
                if not member.isdir() and not _is_as_in(archive, member, folder / member.name):
                    return False
    return True


def _unpack_one(path: Path, target: Path) -> None:
    made: set[str] = set()
    with path.open("rb") as archive:
        for member in _members(archive):
            try:
                _make_folder(target, member.name if member.isdir() else member.name.rpartition("/")[0], made)
                if not member.isdir():
                    _write(archive, member, target / member.name)
            except (FileExistsError, NotADirectoryError) as fault:
                raise ArchiveError(f"{shown(member.name)}: it stands twice, or below a file") from fault


def _archives(found: Iterable[Found], group_of: Callable[[str], str | None]) -> dict[str, list[Found]]:
    """Return the paths of each archive, by the archive's name, in the order of names."""
    groups: dict[str | None, list[Found]] = {}
    for one in found:
        groups.setdefault(group_of(one.path), []).append(one)
    archives: dict[str, list[Found]] = {_OTHERS: []}
    for name, members in groups.items():
        is_large = name is not None and sum(one.num_bytes for one in members) >= CHUNK_BYTES
        # The name is of a path, and so fits into one: as a folder's, which needs no ending.
        archives.setdefault(f"{_GROUPS}/{name}/{_OTHERS}" if is_large else _OTHERS, []).extend(members)
    archives[_OTHERS].sort(key=lambda one: one.path)
    return dict(sorted(archives.items()))


def _add(archive: IO[bytes], folder: Path, one: Found) -> None:
    if one.kind is Kind.LINK:
        raise FolderError(f"{shown(one.path)}: it is a link")
    about = tarfile.TarInfo(one.path)
    about.mode = _MEMBER_MODES[one.kind]
    if one.kind is Kind.FOLDER:
        about.type = tarfile.DIRTYPE
        archive.write(about.tobuf(tarfile.PAX_FORMAT))
        return
    about.size = one.num_bytes
    archive.write(about.tobuf(tarfile.PAX_FORMAT))
    try:
        with open_file(folder, one) as file:
            num_bytes = sum(map(archive.write, _pieces(file, one.num_bytes)))
            if num_bytes != one.num_bytes or state_of(os.fstat(file.fileno())) != one.state:
                raise changed(one.path)
    finally:
        archive.write(bytes(-one.num_bytes % tarfile.BLOCKSIZE))


def _pieces(file: IO[bytes] | io.FileIO, num_bytes: int) -> Iterator[bytes]:
    """Yield the next bytes of a file: so many, or fewer where it ends."""
    while num_bytes and (piece := file.read(min(num_bytes, CHUNK_BYTES))):
        yield piece
        num_bytes -= len(piece)


def _members(archive: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive, each checked before it is yielded. Raises ArchiveError."""
    end = 0
    try:
        with tarfile.open(fileobj=archive, mode="r:", errorlevel=2) as found:
            for member in found:
                if fault := _fault_of(member):
                    raise ArchiveError(f"{shown(member.name)}: {fault}")
                end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                yield member
    except (tarfile.TarError, ValueError, OverflowError, MemoryError) as fault:
        raise ArchiveError(str(fault) or "a header has a size that no memory holds") from fault
    # The reader takes a header that is no header for the end.
    archive.seek(end)
    if archive.read(len(_END) + 1) != _END:
        raise ArchiveError("it does not end behind its last file")


def _fault_of(member: tarfile.TarInfo) -> str | None:
    modes = _MODES_OF_TYPES.get(member.type)
    if modes is None or member.issparse():
        return "it is no plain file"
    if member.size < 0:
        return "its size is below 0"
    if member.mode not in modes or not _HEADERS.issuperset(member.pax_headers):
        return "its header has what no archive of a folder has"
    return path_fault(member.name)


def _make_folder(target: Path, path: str, made: set[str]) -> None:
    if path not in made:
        (target / path).mkdir(mode=0o755, parents=True, exist_ok=True)
        made.add(path)


def _write(archive: IO[bytes], member: tarfile.TarInfo, target: Path) -> None:
    descriptor = os.open(target, _OPENS, _DRAFT_MODE)
    try:
        archive.seek(member.offset_data)
        num_bytes = 0
        for piece in _pieces(archive, member.size):
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            num_bytes += len(piece)
        if num_bytes != member.size:
            raise ArchiveError(f"{shown(member.name)}: the archive ends within it")
        os.fchmod(descriptor, member.mode)
    finally:
        os.close(descriptor)


def _is_as_in(archive: IO[bytes], member: tarfile.TarInfo, path: Path) -> bool:
    try:
        file = io.FileIO(open_plain(path))
    except OSError:
        return False
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or (status.st_size, stat.S_IMODE(status.st_mode)) != (
            member.size,
            member.mode,
        ):
            return False
        archive.seek(member.offset_data)
        return all(piece == file.read(len(piece)) for piece in _pieces(archive, member.size))
