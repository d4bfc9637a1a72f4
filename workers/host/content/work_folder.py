"""The folder of one attempt: a bundle's files as hard links to the host's copy, or as copies of them.

Links where no program of a job can write the copy, since each job has a user of its own and the files are root's.
Elsewhere programs run as we do, and could: they get copies, and each byte is checked against its digest on the way.
The folders belong to the program, which may make files next to the bundle's.
"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from muster.content.faults import DamagedError, shown
from muster.content.manifest import CHUNK_BYTES, Entry, Kind, Manifest
from workers.host.content.chunks import ChunkPlace, read_right
from workers.host.content.drafts import FILE_MODES
from workers.host.content.failpoints import IN_WORK_FOLDER, failpoint

_ROOT_MODE: Final = 0o700
"""Of the work folder: no other job looks into it."""
_FOLDER_MODE: Final = 0o755
_NO_LINK: Final = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP})


def make_work_folder(
    manifest: Manifest, copy: Path, target: Path, *, are_linked: bool, owner: tuple[int, int] | None
) -> None:
    """Make ``target``, which must not exist. ``owner``: user and group of its folders and links; None: our own.

    Raises:
        DamagedError: a file of the copy is not as the manifest says.
        OSError: it cannot be made; a part may be there.
    """
    target.mkdir(mode=_ROOT_MODE, parents=True)
    take = _link_or_copy if are_linked else _copy
    for folder in _folders_of(manifest):
        (target / folder).mkdir(mode=0o700)
    for entry in manifest.entries:
        if entry.kind is Kind.LINK:
            (target / entry.path).symlink_to(entry.parts[0])
        elif entry.kind is not Kind.FOLDER:
            take(entry, copy / entry.path, target / entry.path)
    failpoint(IN_WORK_FOLDER)
    _hand_over(manifest, target, owner)


def _folders_of(manifest: Manifest) -> Iterator[str]:
    """Yield the folders, each after the one above it."""
    met = {""}
    for entry in manifest.entries:
        path = entry.path if entry.kind is Kind.FOLDER else entry.path.rpartition("/")[0]
        missing: list[str] = []
        while path not in met:
            missing.append(path)
            met.add(path)
            path = path.rpartition("/")[0]
        yield from reversed(missing)


def _link_or_copy(entry: Entry, source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as fault:
        if fault.errno not in _NO_LINK:
            raise
        _copy(entry, source, target)


def _copy(entry: Entry, source: Path, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for number, digest in enumerate(entry.parts):
            content = read_right(ChunkPlace(source, number * CHUNK_BYTES), digest)
            if content is None:
                raise DamagedError(f"{shown(entry.path)} is not as it was fetched")
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.fchmod(file.fileno(), FILE_MODES[entry.kind])


def _hand_over(manifest: Manifest, target: Path, owner: tuple[int, int] | None) -> None:
    """Give folders and links away, the deepest first: what is above is ours until then, so no name changes its file."""
    give: Callable[[Path], None] = (lambda _: None) if owner is None else (lambda path: _give(path, owner))
    for entry in manifest.entries:
        if entry.kind is Kind.LINK:
            give(target / entry.path)
    for folder in sorted(_folders_of(manifest), key=lambda path: path.count("/"), reverse=True):
        (target / folder).chmod(_FOLDER_MODE)
        give(target / folder)
    give(target)


def _give(path: Path, owner: tuple[int, int]) -> None:
    os.chown(path, *owner, follow_symlinks=False)
