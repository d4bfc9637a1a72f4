"""Reading of outputs into a manifest: what the limits admit, each file once, and what had to be left out."""

import contextlib
import errno
import fcntl
import io
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from muster.client.uploads import FolderContent
from muster.content.files import read_chunk_at
from muster.content.manifest import CHUNK_BYTES, VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.content.read import Bundle, changed
from muster.content.scan import Found, Scan
from muster.sizes import size_in_words
from workers.host.outputs.patterns import Patterns
from workers.host.outputs.tree import LeftOut, OutputTree, state_of

_NUM_TRIES: Final = 3
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FICLONE: Final = 0x40049409
"""Linux, include/uapi/linux/fs.h."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one collection."""

    max_bytes: int
    max_files: int


@dataclass(slots=True)
class Outputs:
    """Outputs of one part of an attempt, from one folder or two. What an earlier one has, a later one does not add."""

    limits: Limits
    left_out: LeftOut = field(default_factory=LeftOut)
    changed: LeftOut = field(default_factory=LeftOut)
    found: dict[str, tuple[Found, OutputTree]] = field(default_factory=dict)

    def add(self, tree: OutputTree, patterns: Patterns) -> None:
        """Add what the patterns take of a folder."""
        folders = {above for path in self.found for above in _above(path)}
        for one in tree.scan(patterns, self.limits.max_files - len(self.found), self.left_out):
            if one.path in self.found or one.path in folders or any(above in self.found for above in _above(one.path)):
                self.left_out.add(one.path, "the output folder has another file of that name")
            else:
                self.found[one.path] = (one, tree)

    def keep_within_limit(self) -> None:
        """Leave the largest files out until the others have at most as many bytes as the limits admit."""
        total = sum(one.num_bytes for one, _ in self.found.values())
        accepted = size_in_words(self.limits.max_bytes)
        for one in sorted((one for one, _ in self.found.values()), key=lambda one: one.num_bytes, reverse=True):
            if total <= self.limits.max_bytes:
                return
            why = f"all files have {size_in_words(total)}, and {accepted} are collected: the largest are left out"
            self.left_out.add(one.path, why)
            total -= one.num_bytes
            del self.found[one.path]

    def read(self) -> FolderContent:
        """Read each file, and return what is to be uploaded."""
        entries: list[Entry] = []
        scanned: list[Found] = []
        for path in sorted(self.found):
            one, tree = self.found[path]
            if one.kind is Kind.LINK:
                entries.append(Entry(path, one.kind, 0, (one.target,)))
                scanned.append(one)
            elif (read := self._attempted(one, lambda file, _: _parts(file.fileno()), tree)) is not None:
                was, parts = read
                entries.append(Entry(path, was.kind, was.num_bytes, parts))
                scanned.append(was)
        manifest = Manifest(VERSION, tuple(entries))
        num_bytes = sum(one.num_bytes for one in scanned)
        bundle = Bundle(manifest, digest_of(encode(manifest)), Scan(scanned, num_bytes), num_bytes)
        return FolderContent.of(bundle, self.opened)

    def copy(self, target: Path) -> None:
        """Copy all into an empty folder of our own, where nothing changes them any more."""
        for path in sorted(self.found):
            one, tree = self.found[path]
            (target / path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if one.kind is Kind.LINK:
                (target / path).symlink_to(one.target)
            elif self._attempted(one, partial(_copy, target / path), tree) is None:
                (target / path).unlink(missing_ok=True)

    def _attempted(
        self, one: Found, work: Callable[[io.FileIO, os.stat_result], Result], tree: OutputTree
    ) -> tuple[Found, Result] | None:
        """Return a file as it was while ``work`` was done with it, and the result; None: it is left out."""
        try:
            for _ in range(_NUM_TRIES):
                with tree.open_file(one.path) as file:
                    before = os.fstat(file.fileno())
                    result = work(file, before)
                    after = os.fstat(file.fileno())
                if state_of(before) == state_of(after):
                    return Found(one.path, one.kind, after.st_size, state_of(after)), result
        except OSError as fault:
            if fault.errno in _FULL:
                raise
            self.left_out.add(one.path, f"it cannot be read: {fault.strerror or fault}")
            return None
        self.changed.add(one.path, "it changed while it was read")
        return None

    def opened(self, one: Found) -> io.FileIO:
        """Open a file as it was read. Raises FolderError: it has changed since, or cannot be read."""
        _, tree = self.found[one.path]
        with contextlib.suppress(OSError):
            file = tree.open_file(one.path)
            if state_of(os.fstat(file.fileno())) == one.state:
                return file
            file.close()
        raise changed(one.path)


def _parts(descriptor: int) -> tuple[str, ...]:
    """Return the digests of a file's chunks. One that grows without end is read as far as it was at the beginning."""
    num_bytes = os.fstat(descriptor).st_size
    return tuple(digest_of(read_chunk_at(descriptor, start)) for start in range(0, num_bytes, CHUNK_BYTES))


def _copy(target: Path, file: io.FileIO, status: os.stat_result) -> None:
    """Copy a file. Where the file system can, both share their blocks until one changes."""
    mode = 0o700 if status.st_mode & stat.S_IXUSR else 0o600
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with io.FileIO(descriptor, "w") as copy:
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, file.fileno())
        except OSError:
            at = 0
            while at < status.st_size and (sent := os.sendfile(copy.fileno(), file.fileno(), at, status.st_size - at)):
                at += sent


def _above(path: str) -> Iterator[str]:
    at = path.rfind("/")
    while at > 0:
        yield path[:at]
        at = path.rfind("/", 0, at)
