"""Removal of work folders, which belong to a program.

Another attempt of the job has the same user. It may change the folder while it is being removed: put a link in the
place of a folder, or keep the folder open. So the folder first leaves the place that programs reach, and each step
names one file in a folder that is open. No path of the program is followed, and none is too deep.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from workers.host.content.places import OUTPUTS, REMOVED, SET_ASIDE, WORK

_OPENS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CLOSED: Final = 0o700
_REMOVABLE: Final = frozenset({OUTPUTS, SET_ASIDE, WORK})


def remove_work_folder(folder: Path) -> None:
    """Remove a folder of ``work``, ``outputs`` or ``set_aside`` that a program may have filled, and closed against us;
    none is no error.

    Raises OSError: a part remains, under another name: ``sweep_removed`` removes it later.
    """
    _require_removable(folder)
    with suppress(FileNotFoundError), _opened(folder.parent) as work, _removed_of(folder.parent.parent) as removed:
        _remove(_moved(folder.name, work, removed), removed)


def set_aside_to_remove(folder: Path) -> None:
    """Take a folder, as ``remove_work_folder`` does, and leave its removal to ``sweep_removed``."""
    _require_removable(folder)
    with suppress(FileNotFoundError), _opened(folder.parent) as work, _removed_of(folder.parent.parent) as removed:
        _moved(folder.name, work, removed)


def sweep_removed(state_dir: Path) -> None:
    """Remove what an earlier removal left, also one that was killed. Raises OSError: a part remains."""
    with _removed_of(state_dir) as removed:
        for name in os.listdir(removed):  # noqa: PTH208  # a descriptor
            _remove(name, removed)


def _require_removable(folder: Path) -> None:
    if folder.parent.name not in _REMOVABLE:
        raise ValueError(f"{folder} is no folder of a program's files")


@contextmanager
def _removed_of(state_dir: Path) -> Iterator[int]:
    """Yield the open folder of what is being removed, which no program reaches."""
    path = state_dir / REMOVED
    path.mkdir(mode=_CLOSED, parents=True, exist_ok=True)
    with _opened(path) as descriptor:
        os.fchmod(descriptor, _CLOSED)
        yield descriptor


@contextmanager
def _opened(path: Path | str, above: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | _OPENS, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove(name: str, removed: int) -> None:
    """Remove ``name`` and all below it, each folder after it has moved up to ``removed``. Other processes may help."""
    pending = [name]
    while pending:
        one = pending.pop()
        with suppress(FileNotFoundError):
            try:
                _open_to_us(one, removed)
                with _opened(one, removed) as descriptor:
                    pending += _emptied(descriptor, removed)
            except NotADirectoryError:
                os.unlink(one, dir_fd=removed)
            else:
                os.rmdir(one, dir_fd=removed)


def _emptied(descriptor: int, removed: int) -> list[str]:
    """Remove the files of an open folder, and move its folders up. Return their names there."""
    moved = []
    with os.scandir(descriptor) as listing:
        children = list(listing)
    for child in children:
        with suppress(FileNotFoundError):
            if child.is_dir(follow_symlinks=False):
                moved.append(_moved(child.name, descriptor, removed))
            else:
                os.unlink(child.name, dir_fd=descriptor)
    return moved


def _moved(name: str, above: int, removed: int) -> str:
    new = f"{os.getpid()}.{time.monotonic_ns()}"
    with suppress(NotADirectoryError):  # a link or file, which needs no mode
        _open_to_us(name, above)
    os.rename(name, new, src_dir_fd=above, dst_dir_fd=removed)
    return new


def _open_to_us(name: str, above: int) -> None:
    """Give a folder a mode with which we may empty and move it. Root needs none, and changes none."""
    if os.geteuid() == 0:
        return
    descriptor = os.open(name, os.O_PATH | _OPENS, dir_fd=above)
    try:
        # A folder that is closed against us opens as a path alone, which fchmod does not take.
        os.chmod(f"/proc/self/fd/{descriptor}", _CLOSED)  # noqa: PTH101  # a descriptor
    finally:
        os.close(descriptor)
