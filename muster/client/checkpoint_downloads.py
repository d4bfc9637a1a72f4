"""Download of a checkpoint: its files by ranges, each checked by its digest, and the name of the whole at the very end.

A checkpoint is written into the folder that the runtime uses while it saves one, so nothing takes it for whole: a run
that was broken off continues there. Its final name is given once all of it is on the disk.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

import httpx

from muster import documents
from muster.client.output_downloads import CONNECTIONS, TIMES, TRIES, cancel, fetched, pause, slow, trusted_by
from muster.client.output_files import PlaceError
from muster.client.rest import RestClient
from muster.content.faults import shown
from muster.store.faults import (
    MAX_ERROR_BYTES,
    StoreRefusedError,
    StoreSlowError,
    StoreWrongError,
    fault_of,
)

MANIFEST: Final = "MANIFEST.json"
MAX_MANIFEST_BYTES: Final = 32 << 20
PIECE_BYTES: Final = 1 << 20
RANGE_BYTES: Final = 64 << 20
"""So much is asked for at once: a connection that ends costs no more than the piece that it was sending."""
BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A file as the checkpoint's manifest has it."""

    name: str
    num_bytes: int
    sha256: str


class DamagedFileError(StoreWrongError):
    """A file of the checkpoint is not as it was saved."""

    title = "The checkpoint is damaged"
    advice = "Fetch another step: `muster job checkpoints` lists them. `--unverified` takes it as it is."


@dataclass(slots=True)
class CheckpointDownload:
    """One checkpoint of a job, to be fetched into ``folder``, where it gets its own name, such as ``step-…/gen-…``.

    ``signing``: signs downloads of files by their names, where the control plane does not.
    ``takes_damaged``: a file that is not as it was saved is kept; ``damaged`` names those. ``on_progress`` gets the
    bytes that are there, and the bytes of all files.
    """

    client: RestClient
    job_id: str
    checkpoint: documents.Checkpoint
    folder: Path
    takes_damaged: bool = False
    ca_file: Path | None = None
    on_progress: Callable[[int, int], None] = lambda _done, _total: None
    signing: Callable[[Sequence[str]], documents.CheckpointDownloads] | None = None
    damaged: list[str] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _ending: threading.Event = field(default_factory=threading.Event)
    _num_done: int = 0
    _num_bytes: int = 0

    @property
    def target(self) -> Path:
        return self.folder / self.checkpoint["generation"]

    @property
    def partial(self) -> Path:
        """The folder of a checkpoint that is not whole; the runtime names it so too (``generations.partial_of``)."""
        name = PurePosixPath(self.checkpoint["generation"])
        return self.folder / name.parent / f".{name.name}.partial"

    def manifest(self) -> bytes:
        """Return the checkpoint's manifest, as its job reported it. Raises StoreError, and Problem of the API."""
        signed = self._signed([MANIFEST])
        otherwise = "the checkpoint's manifest is not the one that its job reported"
        with self._http() as http:
            return fetched(http, signed["files"][0], signed["sha256"], MAX_MANIFEST_BYTES, otherwise=otherwise)

    def run(self, manifest: bytes, files: Sequence[CheckpointFile]) -> None:
        """Fetch what is not there yet, and give the whole its name.

        Raises:
            PlaceError: a file cannot be written.
            StoreError: the store does not answer or lacks a file. ``DamagedFileError``: a file is not as it was saved.
            Problem, UnreachableError: of the control plane.
        """
        self._num_bytes = sum(one.num_bytes for one in files)
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
            with self._http() as http, ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="download") as threads:
                for at in range(0, len(files), BATCH):
                    batch = files[at : at + BATCH]
                    signed = self._signed([one.name for one in batch])["files"]
                    running = [
                        threads.submit(self._fetch, http, one, link) for one, link in zip(batch, signed, strict=True)
                    ]
                    try:
                        for future in as_completed(running):
                            future.result()
                    finally:
                        self._ending.set()
                        cancel(running)
                    self._ending.clear()
            self._finish(manifest)
        except OSError as error:
            raise PlaceError(f"{shown(str(self.target))}: {error.strerror or error}") from error

    def num_there(self, files: Sequence[CheckpointFile]) -> int:
        """Return how many bytes an earlier run has fetched."""
        return sum(min(one.num_bytes, _size_of(self.partial / one.name)) for one in files)

    def _fetch(self, http: httpx.Client, one: CheckpointFile, signed: documents.SignedDownload) -> None:
        """Fetch one file, after what an earlier run has fetched of it."""
        path = self.partial / one.name
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags, 0o666)
        with os.fdopen(descriptor, "r+b") as file:
            digest = self._digest_of(file, one)
            if file.tell() == one.num_bytes and digest.hexdigest() != one.sha256:
                # A loss of power may have left other bytes than were fetched: again from the beginning.
                self._count(-file.tell())
                file.seek(0)
                digest = hashlib.sha256()
            file.truncate()
            self._fetch_rest(http, one, signed, file, digest)
            file.flush()
            os.fsync(file.fileno())
            if digest.hexdigest() != one.sha256:
                if not self.takes_damaged:
                    self._count(-file.tell())
                    file.truncate(0)
                    raise DamagedFileError(f"{one.name} is not as it was saved: its SHA-256 differs")
                with self._guard:
                    self.damaged.append(one.name)

    def _digest_of(self, file: BinaryIO, one: CheckpointFile) -> "hashlib._Hash":
        digest, left = hashlib.sha256(), one.num_bytes
        while left and (piece := file.read(min(PIECE_BYTES, left))):
            self._require_going()
            digest.update(piece)
            left -= len(piece)
            self._count(len(piece))
        return digest

    def _fetch_rest(
        self,
        http: httpx.Client,
        one: CheckpointFile,
        signed: documents.SignedDownload,
        file: BinaryIO,
        digest: "hashlib._Hash",
    ) -> None:
        tried, is_renewed = 0, False
        while (at := file.tell()) < one.num_bytes:
            self._require_going()
            end = min(at + RANGE_BYTES, one.num_bytes)
            try:
                self._read_range(http, signed, at, end, file, digest)
            except StoreRefusedError:
                if is_renewed:
                    raise
                # An address counts for an hour, and a large file takes longer.
                signed, is_renewed = self._signed([one.name])["files"][0], True
            except (httpx.HTTPError, StoreSlowError) as error:
                tried = 0 if file.tell() > at else tried + 1
                if tried == TRIES:
                    raise slow(error) from error
                pause(tried)
            else:
                tried, is_renewed = 0, False

    def _read_range(
        self,
        http: httpx.Client,
        signed: documents.SignedDownload,
        at: int,
        end: int,
        file: BinaryIO,
        digest: "hashlib._Hash",
    ) -> None:
        headers = {**signed["headers"], "Range": f"bytes={at}-{end - 1}"}
        with http.stream("GET", signed["url"], headers=headers) as answer:
            if answer.status_code != httpx.codes.PARTIAL_CONTENT:
                said = b""
                for piece in answer.iter_raw():
                    said += piece
                    if len(said) > MAX_ERROR_BYTES:
                        break
                raise fault_of(answer.status_code, said)
            left = end - at
            for piece in answer.iter_raw(PIECE_BYTES):
                self._require_going()
                taken = piece[:left]
                file.write(taken)
                digest.update(taken)
                left -= len(taken)
                self._count(len(taken))
            if left == end - at:
                raise StoreSlowError("the content store does not answer: it sent no byte of the range")

    def _finish(self, manifest: bytes) -> None:
        """Write the manifest, and give the checkpoint its name: after a loss of power it is whole, or not there."""
        with (self.partial / MANIFEST).open("wb") as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        _sync(self.partial)
        self.partial.rename(self.target)
        _sync(self.target.parent)

    def _signed(self, names: Sequence[str]) -> documents.CheckpointDownloads:
        if self.signing is not None:
            return self.signing(names)
        has_all = self.checkpoint["status"] not in {"VERIFIED", "GOOD"}
        return self.client.sign_checkpoint_downloads(self.job_id, self.checkpoint["id"], names, unverified=has_all)

    def _http(self) -> httpx.Client:
        return httpx.Client(timeout=TIMES, verify=trusted_by(self.ca_file), follow_redirects=False)

    def _count(self, num_bytes: int) -> None:
        with self._guard:
            self._num_done += num_bytes
            self.on_progress(self._num_done, self._num_bytes)

    def _require_going(self) -> None:
        """Raise StoreSlowError: another file has failed, and the next run fetches the rest."""
        if self._ending.is_set():
            raise StoreSlowError("another file of the checkpoint failed")


def digest_of_file(path: Path) -> str:
    """Return a file's SHA-256. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _sync(folder: Path) -> None:
    """Make the names in a folder durable, where folders can be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
