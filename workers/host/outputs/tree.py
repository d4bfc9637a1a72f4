"""A folder that a program has filled, read with its user's rights and no more.

A program may leave anything there: links to files that are not its own, pipes, names that no terminal shows. Each step
names one name in a folder that is open, and follows no link.
"""

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from muster.content.faults import shown
from muster.content.manifest import Kind, link_fault, name_fault
from muster.content.scan import Found
from workers.host.outputs.patterns import Patterns, Place
from workers.host.supervisor.user.job_user import JobUser

MOST_NAMED: Final = 20
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SPECIAL: Final = "it is a socket, a pipe or a device"
_MOST_DEPTH: Final = 256


@dataclass(slots=True)
class LeftOut:
    """Paths that are not collected, the first of them with their reasons."""

    count: int = 0
    paths: list[str] = field(default_factory=list)
    words: str = ""

    def add(self, path: str, why: str) -> None:
        self.count += 1
        if len(self.paths) < MOST_NAMED:
            self.paths.append(shown(path))
            self.words = self.words or f"{shown(path)[:200]}: {why}"


def state_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return numbers by which a later change of a file shows. A new hard link to it, as of a bundle's, is none."""
    return status.st_ino, status.st_size, status.st_mtime_ns, 0


class OutputTree:
    """The folder ``root``. ``below``: the part of it that paths count from."""

    def __init__(self, root: int, user: JobUser, below: str = "") -> None:
        self._root = root
        self._user = user
        self._below = [name for name in below.split("/") if name]

    @classmethod
    def at(cls, path: Path, user: JobUser, *, is_ours: bool, below: str = "") -> Self:
        """Open it. ``is_ours``: the way to it is ours, and may be closed to the user. Raises OSError."""
        if is_ours:
            return cls(os.open(path, _FOLDER), user, below)
        with user.acting():
            return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), user, below)

    def close(self) -> None:
        os.close(self._root)

    def scan(self, patterns: Patterns, most: int, left_out: LeftOut) -> list[Found]:
        """Return what the patterns take, sorted; of more than ``most`` paths only so many."""
        found: list[Found] = []
        with self._user.acting():
            for one in self._walk(patterns, left_out):
                if len(found) == most:
                    left_out.add(one.path, f"there are more than the {most:,} files that are collected at once")
                    break
                found.append(one)
        return sorted(found, key=lambda one: one.path)

    def open_file(self, path: str) -> io.FileIO:
        """Open a file to read. Raises OSError: it cannot be read, or is none."""
        *above, name = path.split("/")
        with self._user.acting(), self._opened(above) as folder:
            file = io.FileIO(os.open(name, _FILE, dir_fd=folder))
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
        raise OSError(f"{shown(path)}: it is no file any more")

    def _walk(self, patterns: Patterns, left_out: LeftOut) -> Iterator[Found]:
        pending: list[tuple[list[str], Place]] = [([], patterns.start)]
        while pending:
            names, place = pending.pop()
            path = "".join(f"{name}/" for name in names)
            try:
                with self._opened(names) as folder, os.scandir(folder) as listing:
                    for child in sorted(listing, key=lambda one: one.name):
                        inside = patterns.inside(place, child.name)
                        if not inside:
                            continue
                        if child.is_dir(follow_symlinks=False):
                            if (fault := _folder_fault(child.name, path, len(names))) is None:
                                pending.append(([*names, child.name], inside))
                            else:
                                left_out.add(path + child.name, fault)
                        elif patterns.takes(inside) and (one := _leaf(child, path, left_out, folder)):
                            yield one
            except OSError as fault:
                if names:
                    left_out.add(path[:-1], f"it cannot be read: {fault.strerror}")
                elif not isinstance(fault, FileNotFoundError):
                    left_out.add(".", f"it cannot be read: {fault.strerror}")

    @contextlib.contextmanager
    def _opened(self, names: list[str]) -> Iterator[int]:
        """Open a folder by its names, one after the other."""
        descriptor = os.dup(self._root)
        try:
            for name in [*self._below, *names]:
                inner = os.open(name, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)


def _folder_fault(name: str, above: str, depth: int) -> str | None:
    if depth >= _MOST_DEPTH:
        return f"it is more than {_MOST_DEPTH} folders deep"
    return name_fault(name, above + name)


def _leaf(child: os.DirEntry[str], above: str, left_out: LeftOut, folder: int) -> Found | None:
    """Return a file or link; None: it is left out."""
    path = above + child.name
    fault, found = name_fault(child.name, path), None
    try:
        if fault is None and child.is_symlink():
            target = os.readlink(child.name, dir_fd=folder)
            fault, found = link_fault(path, target), Found(path, Kind.LINK, target=target)
        elif fault is None:
            status = child.stat(follow_symlinks=False)
            kind = Kind.PROGRAM if status.st_mode & stat.S_IXUSR else Kind.FILE
            fault = None if stat.S_ISREG(status.st_mode) else _SPECIAL
            found = Found(path, kind, status.st_size, state_of(status))
    except OSError as error:
        fault = f"it cannot be read: {error.strerror}"
    if fault is not None:
        left_out.add(path, fault)
        return None
    return found
