"""Download of outputs: chunks straight from the content store, each checked by its digest before it counts.

A run that was broken off continues where it was: what is on the disk is digested again, and only the rest is fetched.
"""

import random
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from muster import documents
from muster.client.output_files import OutputFile
from muster.client.rest import RestClient
from muster.content.manifest import CHUNK_BYTES, MAX_MANIFEST_BYTES, Entry, Kind, Manifest, decode, digest_of
from muster.store.faults import (
    MAX_ERROR_BYTES,
    StoreError,
    StoreRefusedError,
    StoreSlowError,
    StoreWrongError,
    fault_of,
)

BATCH: Final = 500
CONNECTIONS: Final = 4
TRIES: Final = 5
PAUSE_S: Final = 0.5
TIMES: Final = httpx.Timeout(60.0, connect=10.0)
_MOST_NAMED: Final = 5


class OtherBytesError(Exception):
    """Files are there with other bytes. ``paths``: some of them; ``number``: how many there are."""

    def __init__(self, paths: Sequence[str], number: int) -> None:
        self.paths, self.number = tuple(paths), number
        super().__init__(f"{number} files are there with other bytes: {', '.join(paths)}")


@dataclass(frozen=True, slots=True)
class _Lack:
    """Where a chunk belongs."""

    file: OutputFile
    number: int


@dataclass(slots=True)
class OutputDownload:
    """One collection of a job's outputs, to be fetched into ``folder``.

    ``path``: a file of it, or a folder; None: all. ``replaces``: files that are there with other bytes are replaced.
    ``on_progress`` gets the bytes that were fetched and all that were to be.
    """

    client: RestClient
    job_id: str
    outputs: documents.JobOutputs
    folder: Path
    path: str | None = None
    replaces: bool = False
    ca_file: Path | None = None
    on_progress: Callable[[int, int], None] = lambda _done, _total: None

    def run(self) -> int:
        """Fetch what is not there yet. Return how many files were written.

        Raises:
            OtherBytesError: files are there with other bytes; nothing is written.
            PlaceError: a file cannot be written.
            StoreError: the store does not answer, lacks a chunk, or has other bytes.
            Problem, UnreachableError: of the control plane.
        """
        with httpx.Client(timeout=TIMES, verify=trusted_by(self.ca_file), follow_redirects=False) as http:
            manifest = self._manifest(http)
            files = [OutputFile(self.folder, one.path, one) for one in self._wanted(manifest)]
            absent = [one for one in files if not one.is_there()]
            self._require_free(absent)
            for one in absent:
                one.begin()
            self._fetch(http, absent)
            # Links last: no file is written past one.
            for one in sorted(absent, key=lambda file: file.entry.kind is Kind.LINK):
                if one.entry.kind > Kind.PROGRAM or one.entry.num_bytes == 0:
                    one.finish(replaces=self.replaces)
        return len(absent)

    def _require_free(self, absent: Sequence[OutputFile]) -> None:
        others = [] if self.replaces else [one.path for one in absent if one.is_taken()]
        if others:
            raise OtherBytesError(others[:_MOST_NAMED], len(others))

    def _manifest(self, http: httpx.Client) -> Manifest:
        signed = self.client.sign_output_downloads(self.job_id, self.outputs["id"], [])["manifest"]
        content = fetched(http, signed, self.outputs["digest"], MAX_MANIFEST_BYTES)
        return decode(content)

    def _wanted(self, manifest: Manifest) -> list[Entry]:
        if self.path is None:
            return list(manifest.entries)
        below = f"{self.path.rstrip('/')}/"
        return [one for one in manifest.entries if one.path == self.path or one.path.startswith(below)]

    def _fetch(self, http: httpx.Client, files: Sequence[OutputFile]) -> None:
        left = {one.path: one.lacking() for one in files if one.entry.kind <= Kind.PROGRAM}
        total = sum(_size(one.entry, number) for one in files for number in left.get(one.path, ()))
        done = 0
        self.on_progress(0, total)
        whole = [one for one in files if one.path in left and one.entry.num_bytes and not left[one.path]]
        for one in whole:
            one.finish(replaces=self.replaces)
        num_left = {path: len(numbers) for path, numbers in left.items()}
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="download") as threads:
            for batch in _batches(files, left):
                for lacks, content in self._contents(http, threads, batch):
                    for lack in lacks:
                        lack.file.write(lack.number, content)
                        done += len(content)
                        num_left[lack.file.path] -= 1
                        if not num_left[lack.file.path]:
                            lack.file.finish(replaces=self.replaces)
                    self.on_progress(done, total)

    def _contents(
        self, http: httpx.Client, threads: ThreadPoolExecutor, batch: Mapping[str, list[_Lack]]
    ) -> Iterator[tuple[list[_Lack], bytes]]:
        """Yield each chunk of a batch once, as it arrives. An address that the store refuses is replaced once."""
        wanted = list(batch)
        for is_last in (False, True):
            signed = self.client.sign_output_downloads(self.job_id, self.outputs["id"], wanted)["chunks"]
            running = {
                threads.submit(fetched, http, one, digest, CHUNK_BYTES): digest
                for digest, one in zip(wanted, signed, strict=True)
            }
            wanted = []
            fault: StoreError | None = None
            try:
                for future in as_completed(running):
                    if future.cancelled():
                        continue
                    try:
                        content = future.result()
                    except StoreError as error:
                        if isinstance(error, StoreRefusedError) and not is_last:
                            wanted.append(running[future])
                        else:
                            # What arrives besides is kept: the next run fetches the rest alone.
                            fault = fault or error
                            cancel(running)
                    else:
                        yield batch[running[future]], content
            finally:
                cancel(running)
            if fault is not None:
                raise fault
            if not wanted:
                return


def trusted_by(ca_file: Path | None) -> ssl.SSLContext:
    """Return the system's certificates, with the control plane's, which may have signed the store's too."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(cafile=str(ca_file))
    return context


def cancel(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        future.cancel()


def _batches(files: Sequence[OutputFile], left: Mapping[str, list[int]]) -> Iterator[dict[str, list[_Lack]]]:
    """Yield the lacking chunks by digest, in the order of the files; a chunk that stands twice is fetched once."""
    batch: dict[str, list[_Lack]] = {}
    for one in files:
        for number in left.get(one.path, ()):
            batch.setdefault(one.entry.parts[number], []).append(_Lack(one, number))
            if len(batch) == BATCH:
                yield batch
                batch = {}
    if batch:
        yield batch


def _size(entry: Entry, number: int) -> int:
    return min(CHUNK_BYTES, entry.num_bytes - number * CHUNK_BYTES)


def fetched(
    http: httpx.Client, signed: documents.SignedDownload, digest: str, most_bytes: int, *, otherwise: str = ""
) -> bytes:
    """Return an object with this digest. ``otherwise``: words for the fault that it has another. Raises StoreError."""
    fault: StoreError = StoreSlowError("the content store was not asked")
    for tried in range(TRIES):
        try:
            content = _read(http, signed, most_bytes)
            if digest_of(content) == digest:
                return content
            fault = StoreWrongError(otherwise or f"the content store has other bytes for {digest[:12]} than its digest")
        except (httpx.HTTPError, StoreSlowError) as error:
            fault = slow(error)
        if tried + 1 < TRIES:
            pause(tried)
    raise fault


def slow(error: httpx.HTTPError | StoreSlowError) -> StoreSlowError:
    """Return the fault of a store that did not answer."""
    if isinstance(error, StoreSlowError):
        return error
    return StoreSlowError(f"the content store does not answer: {str(error) or type(error).__name__}")


def pause(tried: int) -> None:
    """Wait before the next try, twice as long as before the last one."""
    time.sleep(random.uniform(0.5, 1) * PAUSE_S * 2**tried)  # noqa: S311  # a pause, no secret


def _read(http: httpx.Client, signed: documents.SignedDownload, most_bytes: int) -> bytes:
    """Return an answer of at most so many bytes, or one byte more. Raises StoreError, and HTTPError of httpx."""
    content = bytearray()
    with http.stream("GET", signed["url"], headers=signed["headers"]) as answer:
        for piece in answer.iter_raw():
            content += piece
            if len(content) > (most_bytes if answer.status_code == httpx.codes.OK else MAX_ERROR_BYTES):
                break
        if answer.status_code != httpx.codes.OK:
            raise fault_of(answer.status_code, bytes(content))
    return bytes(content)
