"""A copy of a bundle while it is being written: what is there already is kept, after it was read and found right.

So a fetch continues after a kill or a crash, and a damaged copy gets only its damaged chunks again. A file that others
may share by a hard link is never written: it is right, or replaced by another one.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from muster.content.faults import DamagedError, shown
from muster.content.manifest import CHUNK_BYTES, Entry, Kind, Manifest
from muster.content.tree import remove_folder
from workers.host.content.chunks import (
    ChunkPlace,
    Piece,
    files_of,
    lacking_in_new,
    places_of,
    read_right,
    write_at,
    writing_at,
    wrong_chunks,
)
from workers.host.content.failpoints import AFTER_CHUNK, failpoint

FOLDER_MODE: Final = 0o555
FILE_MODES: Final = {Kind.FILE: 0o444, Kind.PROGRAM: 0o555}
_OPEN_FILE: Final = 0o600
_OPEN_FOLDER: Final = 0o700


class Draft:
    """The draft of ``manifest`` in ``root``. ``lacking``: places that a chunk has to be written to, by digest."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._root = root
        self._manifest = manifest
        self.lacking: dict[str, list[ChunkPlace]] = {}

    def open(self, whole_files: Mapping[tuple[str, ...], Path]) -> None:
        """Make all of the draft except for chunks that this host lacks.

        ``whole_files``: files of other copies on this host, by kind and chunks.
        """
        self._root.mkdir(exist_ok=True, mode=_OPEN_FOLDER)
        self._remove_others()
        made = {self._root}
        for entry in self._manifest.entries:
            path = self._root / entry.path
            above = path if entry.kind is Kind.FOLDER else path.parent
            if above not in made:
                above.mkdir(parents=True, exist_ok=True, mode=_OPEN_FOLDER)
                made.update((above, *(one for one in above.parents if one.is_relative_to(self._root))))
            if entry.kind is Kind.LINK:
                _make_link(path, entry.parts[0])
            elif entry.kind is not Kind.FOLDER:
                self._open_file(entry, path, whole_files.get((str(entry.kind.value), *entry.parts)))

    def take_from(self, known: Mapping[str, Iterable[ChunkPlace]]) -> None:
        """Write the chunks that stand in other files here, as far as they are right there.

        Places that lack a chunk may be among them. They are not read: in a new draft that would be all of its bytes.
        """
        for digest in [digest for digest in self.lacking if digest in known]:
            lacking = set(self.lacking[digest])
            places = (place for place in known[digest] if place not in lacking)
            found = (content for place in places if (content := read_right(place, digest)) is not None)
            if (content := next(found, None)) is not None:
                self(digest, content)

    def __call__(self, digest: str, content: bytes) -> None:
        """Write a chunk to all places that lack it, as ``Save`` says."""
        with self.in_pieces(digest) as write:
            write(content)

    @contextlib.contextmanager
    def in_pieces(self, digest: str) -> Iterator[Callable[[Piece], None]]:
        """As ``Save`` says. What an error or a kill leaves of a chunk is found wrong by the next ``open``."""
        first, *others = self.lacking[digest]
        with writing_at(first) as write:
            yield write
        if others:
            content = read_right(first, digest)
            if content is None:
                raise DamagedError(f"{shown(first.path.name)} changes while it is written")
            for place in others:
                write_at(place, content)
        del self.lacking[digest]
        failpoint(AFTER_CHUNK)

    def num_bytes_lacking(self) -> int:
        """Return the bytes that the disk must still take."""
        sizes = dict(self._manifest.chunks())
        return sum(sizes[digest] * len(places) for digest, places in self.lacking.items())

    def close(self) -> None:
        """Give everything the modes of a copy, from the deepest on; the root's own comes with its new name."""
        for entry in files_of(self._manifest):
            (self._root / entry.path).chmod(FILE_MODES[entry.kind])
        for folder, _, _ in os.walk(self._root, topdown=False):
            if folder != str(self._root):
                os.chmod(folder, FOLDER_MODE)  # noqa: PTH101  # as walk names it

    def _remove_others(self) -> None:
        """Open all folders, and remove what is not of the manifest, or is of another kind there."""
        kinds = {entry.path: entry.kind for entry in self._manifest.entries}
        folders = {path.rpartition("/")[0] for path in kinds}
        folders |= {above for folder in tuple(folders) for above in _all_above(folder)}
        folders |= {path for path, kind in kinds.items() if kind is Kind.FOLDER}
        pending = [(self._root, "")]
        while pending:
            folder, path = pending.pop()
            folder.chmod(_OPEN_FOLDER)
            with os.scandir(folder) as listing:
                children = list(listing)
            for child in children:
                inside = path + child.name
                if child.is_dir(follow_symlinks=False):
                    if inside in folders:
                        pending.append((Path(child.path), f"{inside}/"))
                    else:
                        remove_folder(Path(child.path))
                elif kinds.get(inside, Kind.FOLDER) is Kind.FOLDER:
                    Path(child.path).unlink()

    def _open_file(self, entry: Entry, path: Path, same: Path | None) -> None:
        wrong = _wrong_in_kept(entry, path)
        if wrong is None:
            wrong = self._new_file(entry, path, same)
        for number in wrong:
            place = ChunkPlace(path, number * CHUNK_BYTES)
            self.lacking.setdefault(entry.parts[number], []).append(place)

    def _new_file(self, entry: Entry, path: Path, same: Path | None) -> set[int]:
        """Make the file, by a link to the same one of another copy if that is right; return its missing chunks."""
        path.unlink(missing_ok=True)
        if same is not None and entry.parts:
            try:
                os.link(same, path, follow_symlinks=False)
                if not wrong_chunks(entry, path) and path.stat().st_size == entry.num_bytes:
                    return set()
            except OSError:  # gone meanwhile, or has too many links
                pass
            path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _OPEN_FILE)
        try:
            os.ftruncate(descriptor, entry.num_bytes)
        finally:
            os.close(descriptor)
        return lacking_in_new(entry)


def known_chunks(copies: Iterable[tuple[Path, Manifest]]) -> dict[str, list[ChunkPlace]]:
    """Return where other copies here have each of their chunks."""
    known: dict[str, list[ChunkPlace]] = {}
    for root, manifest in copies:
        for entry in files_of(manifest):
            for digest, place in places_of(entry, root / entry.path):
                known.setdefault(digest, []).append(place)
    return known


def whole_files(copies: Iterable[tuple[Path, Manifest]]) -> dict[tuple[str, ...], Path]:
    """Return the files of other copies by kind and chunks."""
    return {
        (str(entry.kind.value), *entry.parts): root / entry.path
        for root, manifest in copies
        for entry in files_of(manifest)
        if entry.parts
    }


def _wrong_in_kept(entry: Entry, path: Path) -> set[int] | None:
    """Return the wrong chunks of a file that stays; None if there is none, or it has to be replaced."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if not _may_be_kept(status, entry):
        return None
    wrong = wrong_chunks(entry, path)
    return wrong if not wrong or stat.S_IMODE(status.st_mode) == _OPEN_FILE else None


def _may_be_kept(status: os.stat_result, entry: Entry) -> bool:
    if not stat.S_ISREG(status.st_mode) or status.st_size != entry.num_bytes or status.st_uid != os.geteuid():
        return False
    mode = stat.S_IMODE(status.st_mode)
    return mode == FILE_MODES[entry.kind] or (mode == _OPEN_FILE and status.st_nlink == 1)


def _make_link(path: Path, target: str) -> None:
    if path.is_symlink() and str(path.readlink()) == target:
        return
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _all_above(folder: str) -> Iterable[str]:
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
