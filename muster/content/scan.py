"""Walk of a work folder: the paths that a bundle takes, by metadata alone, before a byte is read."""

import heapq
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Final

from muster.content.faults import FolderError, FolderTooLargeError, shown
from muster.content.ignored import ENVIRONMENT_MARK, RULE_FILES, Rules
from muster.content.manifest import Kind, link_fault, name_fault
from muster.sizes import size_in_words

MANY_FILES: Final = 100_000
"""Each file costs a host a few system calls: from this number on a start takes seconds longer."""
NUM_LARGEST: Final = 5
_ADVICE: Final = "Name what the job does not need in `.musterignore`, or keep data in a store that the job reads."
_SPECIAL: Final = "it is a socket, a pipe or a device; name it in `.musterignore`"


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest folder that is accepted. Defaults: code and small data, not a data set."""

    max_bytes: int = 2 << 30
    max_files: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """One path of the folder. ``state``: inode, size and times in nanoseconds, by which a later change shows."""

    path: str
    kind: Kind
    num_bytes: int = 0
    state: tuple[int, int, int, int] = (0, 0, 0, 0)
    target: str = ""


@dataclass(slots=True)
class Scan:
    """The paths of a folder, sorted. ``left_out``: virtual environments that are skipped."""

    found: list[Found] = field(default_factory=list)
    num_bytes: int = 0
    left_out: list[str] = field(default_factory=list)

    @property
    def num_files(self) -> int:
        return sum(one.kind <= Kind.PROGRAM for one in self.found)

    def warnings(self) -> tuple[str, ...]:
        """Return what the tenant should know of a folder that is accepted all the same."""
        if self.num_files < MANY_FILES:
            return ()
        folder, count = self.fullest(1)[0]
        many = f"{self.num_files:,} files make each start slow, {count:,} of them in {folder}; pack them into archives"
        return (many,)

    def largest(self) -> list[Found]:
        return heapq.nlargest(NUM_LARGEST, self.found, key=lambda one: one.num_bytes)

    def fullest(self, most: int = NUM_LARGEST) -> list[tuple[str, int]]:
        """Return the folders that directly have the most files, each with their number."""
        counts: dict[str, int] = {}
        for one in self.found:
            folder = one.path.rpartition("/")[0]
            counts[folder] = counts.get(folder, 0) + 1
        fullest = heapq.nlargest(most, counts.items(), key=lambda item: item[1])
        return [(shown(folder) or "the folder itself", count) for folder, count in fullest]


def state_of(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def scan(folder: Path, limits: Limits | None = None, *, takes_all: bool = False) -> Scan:
    """Return the paths that a bundle of ``folder`` has. Links are not followed.

    ``takes_all``: nothing is left out, whatever files of patterns in it say: the folder is no one's work folder.

    Raises:
        FolderTooLargeError: it has more bytes or files than ``limits``; the text names the largest.
        FolderError: a path cannot stand in a manifest, or cannot be read.
    """
    limits = limits or Limits()
    result = Scan()
    try:
        for one in _walk(folder, result, takes_all=takes_all):
            result.found.append(one)
            result.num_bytes += one.num_bytes
            if len(result.found) > limits.max_files:
                raise FolderTooLargeError(_too_many(result, limits))
    except OSError as error:
        raise FolderError(f"{shown(str(error.filename))}: it cannot be read: {error.strerror}") from error
    if result.num_bytes > limits.max_bytes:
        raise FolderTooLargeError(_too_large(result, limits))
    result.found.sort(key=attrgetter("path"))
    return result


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What keeps a path out of a bundle. ``pattern``: as the last line of ``file`` it takes the path.

    ``file`` is a path in the folder; None: nothing takes it.
    """

    why: str
    file: str | None = None
    pattern: str = ""


def why_left_out(root: Path, path: str) -> LeftOut | None:
    """Return what keeps ``path`` out of a bundle of ``root``; None: it is no path there, or nothing does.

    Raises FolderError: a file of patterns cannot be read.
    """
    rules, parts = Rules(), path.split("/")
    for number, name in enumerate(parts):
        folder = root.joinpath(*parts[:number])
        above = "".join(f"{each}/" for each in parts[:number])
        files = {each for each in RULE_FILES if (folder / each).is_file() and not (folder / each).is_symlink()}
        rules = rules.inside(folder, above, files)
        child = folder / name
        is_folder = child.is_dir() and not child.is_symlink()
        if not os.path.lexists(child):
            return None
        one = shown(above + name) + ("/" if is_folder else "")
        if rules.leave_out(above + name, is_folder=is_folder):
            source = rules.source_of(above + name, is_folder=is_folder)
            why = f"{one} is one of the caches that no bundle has" if source is None else f"{source} leaves out {one}"
            base = (source or "").rpartition("/")[0]
            return LeftOut(why, f"{base}/.musterignore".lstrip("/"), f"!/{one.removeprefix(base).lstrip('/')}")
        if is_folder and (child / ENVIRONMENT_MARK).exists():
            return LeftOut(f"{one} is a virtual environment, which no bundle has")
    return None


def _walk(root: Path, result: Scan, *, takes_all: bool) -> Iterator[Found]:
    """Yield the paths in ``root``. An empty folder is a path of its own."""
    pending: list[tuple[Path, str, Rules | None]] = [(root, "", None if takes_all else Rules())]
    while pending:
        folder, path, rules = pending.pop()
        with os.scandir(folder) as listing:
            children = list(listing)
        names = {child.name for child in children if child.name in RULE_FILES and child.is_file(follow_symlinks=False)}
        rules = None if rules is None else rules.inside(folder, path, names)
        taken = [child for child in children if _is_taken(child, path, rules, result)]
        for child in taken:
            if child.is_dir(follow_symlinks=False):
                pending.append((Path(child.path), f"{path}{child.name}/", rules))
            else:
                yield _leaf(child, path + child.name)
        if not taken and path:
            yield Found(path[:-1], Kind.FOLDER)


def _is_taken(child: os.DirEntry[str], folder: str, rules: Rules | None, result: Scan) -> bool:
    path = folder + child.name
    is_folder = child.is_dir(follow_symlinks=False)
    if rules is not None and rules.leave_out(path, is_folder=is_folder):
        return False
    if rules is not None and is_folder and os.path.exists(f"{child.path}/{ENVIRONMENT_MARK}"):  # noqa: PTH110  # a Path costs five times as much
        result.left_out.append(path)
        return False
    fault = name_fault(child.name, path)
    if fault is not None:
        raise FolderError(f"{shown(path)}: {fault}; rename it, or name it in `.musterignore`")
    return True


def _leaf(child: os.DirEntry[str], path: str) -> Found:
    if child.is_symlink():
        target = os.readlink(child.path)  # noqa: PTH115  # Path would change the target's text
        fault = link_fault(path, target)
        if fault is not None:
            raise FolderError(f"{shown(path)} → {shown(target)}: {fault}; copy the file, or name it in `.musterignore`")
        return Found(path, Kind.LINK, target=target)
    status = child.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise FolderError(f"{shown(path)}: {_SPECIAL}")
    kind = Kind.PROGRAM if status.st_mode & stat.S_IXUSR else Kind.FILE
    return Found(path, kind, status.st_size, state_of(status))


def _too_large(result: Scan, limits: Limits) -> str:
    largest = ", ".join(f"{shown(one.path)} ({size_in_words(one.num_bytes)})" for one in result.largest())
    has = f"the folder has {size_in_words(result.num_bytes)}, and {size_in_words(limits.max_bytes)} are accepted"
    return f"{has}. The largest files: {largest}. {_ADVICE}"


def _too_many(result: Scan, limits: Limits) -> str:
    fullest = ", ".join(f"{folder} ({count:,})" for folder, count in result.fullest())
    return (
        f"the folder has more than the {limits.max_files:,} files that are accepted. Most lie in {fullest}. {_ADVICE}"
    )
