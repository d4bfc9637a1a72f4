"""A manifest as a folder again: read-only, whole or not there, and verified byte by byte before a use."""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from muster.content.faults import DamagedError, shown
from muster.content.files import read_chunk_at
from muster.content.manifest import CHUNK_BYTES, Entry, Kind, Manifest, digest_of
from muster.plain_files import open_plain

_FOLDER_MODE: Final = 0o555
_MODES: Final = {Kind.FILE: 0o444, Kind.PROGRAM: 0o555}
_NUM_NAMED: Final = 5


def write_folder(manifest: Manifest, target: Path, fetch: Callable[[str], bytes]) -> None:
    """Write the folder of ``manifest`` to ``target``, which must not exist; it appears whole, and not writable.

    ``fetch`` returns the chunk of a digest. After a crash of the machine a folder may be there with files that are not:
    ``verify_folder`` finds that.

    Raises:
        DamagedError: a chunk does not match its digest.
        FileExistsError: ``target`` exists.
        OSError: it cannot be written; nothing is left.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists")
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    remove_folder(draft)
    try:
        draft.mkdir(mode=0o700, parents=True)
        _write_entries(manifest, draft, fetch)
        draft.rename(target)
        target.chmod(_FOLDER_MODE)
    except BaseException:
        remove_folder(draft)
        raise


def verify_folder(manifest: Manifest, folder: Path) -> None:
    """Raise DamagedError unless ``folder`` has exactly the files of ``manifest``, with the same bytes."""
    entries = {entry.path: entry for entry in manifest.entries}
    missing = set(entries)
    wrong = []
    for path, child in _leaves(folder):
        entry = entries.get(path)
        missing.discard(path)
        if entry is None or not _is_as(entry, child):
            wrong.append(f"{shown(path)} {'is not of it' if entry is None else 'differs'}")
        if len(wrong) >= _NUM_NAMED:
            break
    else:
        wrong += (f"{shown(path)} is missing" for path in sorted(missing)[:_NUM_NAMED])
    if wrong:
        raise DamagedError(f"the folder is not as its manifest says: {', '.join(wrong)}")


def remove_folder(folder: Path) -> None:
    """Remove a folder that ``write_folder`` wrote, or began to write; none is no error."""
    if not folder.exists():
        return
    for root, _, _ in os.walk(folder):
        Path(root).chmod(0o700)
    shutil.rmtree(folder)


def _write_entries(manifest: Manifest, root: Path, fetch: Callable[[str], bytes]) -> None:
    folders = {root}
    for entry in manifest.entries:
        path = root / entry.path
        above = path if entry.kind is Kind.FOLDER else path.parent
        if above not in folders:
            above.mkdir(parents=True, exist_ok=True, mode=0o700)
            folders.update((above, *(one for one in above.parents if one.is_relative_to(root))))
        if entry.kind is Kind.LINK:
            path.symlink_to(entry.parts[0])
        elif entry.kind is not Kind.FOLDER:
            _write_file(entry, path, fetch)
    for folder in folders - {root}:
        folder.chmod(_FOLDER_MODE)


def _write_file(entry: Entry, path: Path, fetch: Callable[[str], bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        num_left = entry.num_bytes
        for digest in entry.parts:
            content = fetch(digest)
            if len(content) != min(CHUNK_BYTES, num_left) or digest_of(content) != digest:
                raise DamagedError(f"{shown(entry.path)}: its chunk {digest[:12]} does not match its digest")
            num_left -= len(content)
            _write_whole(file.fileno(), content)
        os.fchmod(file.fileno(), _MODES[entry.kind])


def _write_whole(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def _leaves(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield files, links, and folders with nothing in them."""
    for root, folders, names in os.walk(folder):
        base = Path(root)
        links = [name for name in folders if (base / name).is_symlink()]
        for name in (*names, *links):
            path = base / name
            yield path.relative_to(folder).as_posix(), path
        if not folders and not names and base != folder:
            yield base.relative_to(folder).as_posix(), base


def _is_as(entry: Entry, path: Path) -> bool:
    with contextlib.suppress(OSError):
        if entry.kind is Kind.LINK:
            return path.is_symlink() and str(path.readlink()) == entry.parts[0]
        status = path.lstat()
        if entry.kind is Kind.FOLDER:
            return stat.S_ISDIR(status.st_mode)
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.num_bytes:
            return False
        if stat.S_IMODE(status.st_mode) != _MODES[entry.kind]:
            return False
        with os.fdopen(open_plain(path), "rb", buffering=0) as file:
            return all(
                digest_of(read_chunk_at(file.fileno(), number * CHUNK_BYTES)) == digest
                for number, digest in enumerate(entry.parts)
            )
    return False
