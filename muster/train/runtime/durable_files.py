"""Files that are whole or absent, also after the machine has lost its power."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Protocol

from muster.train.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Writable(Protocol):
    def write(self, content: bytes | memoryview, /) -> int: ...

    def flush(self) -> object: ...


class HashingFile:
    """File that also hashes the content: of the intended bytes, so that damage during the write shows later."""

    def __init__(self, file: Writable) -> None:
        self.size = 0
        self.fault: OSError | None = None
        self._file = file
        self._sha256 = hashlib.sha256()

    def write(self, content: bytes | memoryview) -> int:
        failpoint("disk.write")
        self._sha256.update(content)
        self.size += len(content)
        try:
            return self._file.write(content)
        except OSError as fault:
            self.fault = fault
            raise

    def flush(self) -> None:
        self._file.flush()

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


@contextlib.contextmanager
def writing_durably(path: Path) -> Iterator[HashingFile]:
    """Write a file whole or not at all, and on disk afterwards. Raises OSError."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        yield HashingFile(file)
        file.flush()
        failpoint("disk.before_sync")
        os.fsync(file.fileno())
    failpoint("disk.before_rename")
    draft.replace(path)


def write_durably(path: Path, content: bytes) -> None:
    with writing_durably(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
