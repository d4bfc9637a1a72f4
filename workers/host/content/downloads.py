"""Download of chunks: by a few connections that stay open, each chunk once, checked by its digest before it counts."""

import contextlib
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from muster.domain.stored_content import FolderKind
from muster.wire.content import MAX_DOWNLOADS, Download
from workers.host.content.chunks import Piece
from workers.host.content.faults import LostObjectError, StoreError
from workers.host.content.store_lines import GoneError, OtherBytesError, PassingError, RefusedError, StoreLine

NUM_LINES: Final = min(4, max(2, os.cpu_count() or 4))
"""Connections at once: two to four fill a network, and more take the host's CPUs from the ranks that run there. With
more threads than CPUs, each finds its piece out of the cache when it continues.
"""
NUM_TRIES: Final = 3
"""Of a chunk that arrives with other bytes, or whose address is refused."""
Writing = Callable[[str], AbstractContextManager[Callable[[Piece], None]]]
"""``Save.in_pieces``."""
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0


class Wanted(NamedTuple):
    """An object of a folder, by its digest, of at most so many bytes. ``kind``: of the folder, for texts."""

    digest: str
    most_bytes: int
    kind: FolderKind


class Downloads:
    """``sign``: returns downloads for at most ``MAX_DOWNLOADS`` digests. ``failure``: gets what is tried again.

    ``kind``: of the folder, for texts.
    """

    def __init__(
        self,
        sign: Callable[[Sequence[str]], Sequence[Download]],
        failure: Callable[[str], None],
        ca_file: Path | None,
        kind: FolderKind,
    ) -> None:
        self._sign = sign
        self._kind = kind
        self._failure = failure
        self._ca_file = ca_file

    def fetch(self, lacking: Mapping[str, int], writing: Writing) -> None:
        """Fetch chunks by digest and number of bytes; ``writing`` is called by several threads, once for each try.

        A store that does not answer is asked again for as long as the process may live.

        Raises:
            LostObjectError: the store lacks a chunk, or has it with other bytes.
            StoreError: the store refuses fresh addresses.
            OSError: a chunk cannot be saved.
        """
        wanted = list(lacking)
        for start in range(0, len(wanted), MAX_DOWNLOADS):
            digests = wanted[start : start + MAX_DOWNLOADS]
            refused: deque[tuple[str, Download]] = deque(zip(digests, self._sign(digests), strict=True))
            for number in range(NUM_TRIES):
                refused = _Batch(refused, lacking, writing, self._failure, self._ca_file, self._kind).run()
                if not refused:
                    break
                if number + 1 < NUM_TRIES:
                    again = [digest for digest, _ in refused]
                    refused = deque(zip(again, self._sign(again), strict=True))
            if refused:
                raise StoreError("the content store refuses fresh addresses: its keys, or the clocks, differ")


class _Batch:
    def __init__(
        self,
        waiting: deque[tuple[str, Download]],
        sizes: Mapping[str, int],
        writing: Writing,
        failure: Callable[[str], None],
        ca_file: Path | None,
        kind: FolderKind,
    ) -> None:
        self._waiting = waiting
        self._kind = kind
        self._sizes = sizes
        self._writing = writing
        self._failure = failure
        self._ca_file = ca_file
        self._refused: deque[tuple[str, Download]] = deque()
        self._fault: BaseException | None = None

    def run(self) -> deque[tuple[str, Download]]:
        """Return what was refused. Raises the first fault of a thread."""
        threads = [threading.Thread(target=self._work) for _ in range(min(NUM_LINES, len(self._waiting)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._fault is not None:
            raise self._fault
        return self._refused

    def _work(self) -> None:
        with StoreLine(self._ca_file) as line:
            while self._fault is None:
                try:
                    digest, download = self._waiting.popleft()
                except IndexError:
                    return
                try:
                    wanted = Wanted(digest, self._sizes[digest], self._kind)
                    fetch_into(line, download, wanted, self._writing, self._failure)
                except RefusedError as fault:
                    self._failure(str(fault))
                    self._refused.append((digest, download))
                except BaseException as fault:  # noqa: BLE001  # raised again by the thread that waits
                    self._fault = fault


def fetch_object(line: StoreLine, download: Download, wanted: Wanted, failure: Callable[[str], None]) -> bytes:
    """Return an object. Raises as ``fetch_into``."""
    found = bytearray()

    @contextlib.contextmanager
    def collecting(_: str) -> Iterator[Callable[[Piece], None]]:
        found.clear()
        yield found.extend

    fetch_into(line, download, wanted, collecting, failure)
    return bytes(found)


def fetch_into(
    line: StoreLine, download: Download, wanted: Wanted, writing: Writing, failure: Callable[[str], None]
) -> None:
    """Fetch an object, which is digested and written as it arrives: a piece is in the CPU's cache then.

    Raises:
        LostObjectError: the store has none, or other bytes each time.
        RefusedError: the address does not count any more.
    """
    pause_s, num_wrong, name = FIRST_PAUSE_S, 0, f"{wanted.digest[:12]} of the {wanted.kind}"
    while True:
        try:
            with writing(wanted.digest) as write:
                _take(line.pieces(download.url, download.headers, wanted.most_bytes), wanted.digest, write)
        except OtherBytesError as fault:
            num_wrong += 1
            if num_wrong == NUM_TRIES:
                words = f"the content store has other bytes for {name} than its digest says"
                raise LostObjectError(words, wanted.digest) from fault
            failure(f"{wanted.digest[:12]} arrived with other bytes")
        except GoneError as fault:
            raise LostObjectError(f"the content store lacks {name}", wanted.digest) from fault
        except PassingError as fault:
            failure(str(fault))
        else:
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _take(pieces: Iterable[memoryview], digest: str, write: Callable[[Piece], None]) -> None:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
        write(piece)
    if found.hexdigest() != digest:
        raise OtherBytesError("another digest")
