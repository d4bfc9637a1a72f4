"""Upload of a work folder: its chunks go straight to the content store, over a few connections that stay open.

The control plane says what is missing, and signs a request for each object. So an upload that was broken off continues
where it was, and of two at once neither needs to know of the other. A chunk is not hashed again here: the store refuses
bytes that do not have the digest that was signed, and files are sent without a copy of them.
"""

from __future__ import annotations

import contextlib
import io
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from muster.client.object_puts import ObjectSource, PutConnections
from muster.content.manifest import CHUNK_BYTES, Kind, digest_of, encode
from muster.content.read import Bundle, open_file
from muster.content.scan import Found
from muster.domain.stored_content import FolderState
from muster.store.faults import StoreError, StoreRefusedError, StoreSlowError

if TYPE_CHECKING:  # a host's start of a job would wait for them
    from muster import documents
    from muster.client.rest import RestClient

CONNECTIONS: Final = 4
CONFIRM_BYTES: Final = 128 << 20
CONFIRM_OBJECTS: Final = 250
CONFIRM_S: Final = 5.0
"""So much is lost at most by the end of this process, since the store has it and the control plane does not know."""
WAIT_S: Final = 5.0
MOST_WAITS: Final = 120
"""How often an object is waited for that is just being deleted: it takes some three minutes."""
MOST_EXPIRED: Final = 3
OnProgress = Callable[[int, int], None]


class Receiver(Protocol):
    """The control plane's side of one folder's upload. Each call raises what a call of the control plane does."""

    def begin(self, manifest: bytes) -> documents.BundleUpload: ...

    def confirm(self, uploaded: Sequence[str]) -> documents.BundleUpload: ...


@dataclass(frozen=True, slots=True)
class FolderContent:
    """What is uploaded of a folder: its manifest, and where the bytes of its objects are."""

    manifest: bytes
    source: ObjectSource

    @classmethod
    def of(cls, bundle: Bundle, opened: Callable[[Found], io.FileIO]) -> FolderContent:
        """Return the content of a folder that was read. ``opened``: opens a file of it, as ``ObjectSource`` says."""
        manifest = encode(bundle.manifest)
        return cls(manifest, ObjectSource(opened, sources_of(bundle), {digest_of(manifest): manifest}))


@dataclass(frozen=True, slots=True)
class _BundleReceiver:
    client: RestClient
    digest: str
    tenant_id: str | None

    def begin(self, manifest: bytes) -> documents.BundleUpload:
        found: documents.BundleUpload = self.client.begin_bundle(manifest, tenant_id=self.tenant_id)
        return found

    def confirm(self, uploaded: Sequence[str]) -> documents.BundleUpload:
        return self.client.confirm_uploads(self.digest, uploaded, tenant_id=self.tenant_id)


@dataclass(slots=True)
class Uploading:
    """The upload of a client's work folder, as ``FolderUpload`` does it."""

    client: RestClient
    folder: Path
    bundle: Bundle
    tenant_id: str | None = None
    ca_file: Path | None = None
    on_progress: OnProgress = lambda _done, _total: None
    pause: Callable[[float], None] = time.sleep

    def run(self) -> documents.BundleUpload:
        """Upload what the store lacks, and return the complete bundle. Raises as ``FolderUpload.run``."""
        receiver = _BundleReceiver(self.client, self.bundle.digest, self.tenant_id)
        content = FolderContent.of(self.bundle, partial(open_file, self.folder))
        return FolderUpload(receiver, content, self.ca_file, self.on_progress, self.pause).run()


@dataclass(slots=True)
class FolderUpload:
    """The upload of one folder. ``on_progress`` gets the bytes that the store has taken, and all that it lacked."""

    receiver: Receiver
    content: FolderContent
    ca_file: Path | None = None
    on_progress: OnProgress = lambda _done, _total: None
    pause: Callable[[float], None] = time.sleep
    _taken: list[str] = field(default_factory=list)
    _taken_bytes: int = 0
    _confirmed_s: float = 0.0
    _num_refused: int = 0
    """Rounds without an object that the store took, though addresses were given."""
    _running: dict[Future[bool], documents.ObjectUpload] = field(default_factory=dict)
    _finished: queue.SimpleQueue[Future[bool]] = field(default_factory=queue.SimpleQueue)
    """Of the running ones. To look through all of them for each that ends would cost a third of what sending does."""

    def run(self) -> documents.BundleUpload:
        """Upload what the store lacks, and return the complete folder.

        Raises:
            FolderError: a file changed since its digest was taken.
            StoreError: the store is full, or did not take an object in several tries.
            Problem, UnreachableError: as every call of the control plane.
        """
        found = self.receiver.begin(self.content.manifest)
        if found["state"] == FolderState.COMPLETE:
            return found
        total = found["missing_bytes"]
        self.on_progress(0, total)
        connections = PutConnections(self.content.source, self.ca_file)
        threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="upload")
        try:
            return self._until_complete(found, threads, connections, total)
        finally:
            connections.close()
            threads.shutdown(cancel_futures=True)

    def _until_complete(
        self, found: documents.BundleUpload, threads: ThreadPoolExecutor, connections: PutConnections, total: int
    ) -> documents.BundleUpload:
        done, num_idle = 0, 0
        self._confirmed_s = time.monotonic()
        while found["state"] != FolderState.COMPLETE:
            in_hand = {upload["digest"] for upload in self._running.values()} | set(self._taken)
            for upload in found["uploads"]:
                if upload["digest"] not in in_hand:
                    future = threads.submit(connections.put, upload)
                    self._running[future] = upload
                    future.add_done_callback(self._finished.put)
            while self._running and not self._is_due():
                done += self._collect()
                self.on_progress(min(done, total), total)
            num_idle = 0 if self._taken else num_idle + 1
            if num_idle:
                self._stand_idle(found, num_idle, connections.refusal)
            else:
                self._num_refused = 0
            found = self._confirm()
        return found

    def _collect(self) -> int:
        """Wait for the next objects that the store has taken. Return their bytes."""
        num_bytes, left_s = 0, CONFIRM_S
        with contextlib.suppress(queue.Empty):
            while True:
                future = self._finished.get(timeout=left_s)
                upload, left_s = self._running.pop(future), 0.0
                # False: its address was refused; the control plane gives a fresh one.
                if future.result():
                    self._taken.append(upload["digest"])
                    num_bytes += upload["num_bytes"]
        self._taken_bytes += num_bytes
        return num_bytes

    def _is_due(self) -> bool:
        """Return whether it is time to confirm, and to get the next uploads."""
        if not self._taken:
            return False
        is_much = self._taken_bytes >= CONFIRM_BYTES or len(self._taken) >= CONFIRM_OBJECTS
        return is_much or time.monotonic() - self._confirmed_s >= CONFIRM_S

    def _confirm(self) -> documents.BundleUpload:
        taken = self._taken[:CONFIRM_OBJECTS]
        found = self.receiver.confirm(taken)
        self._taken = self._taken[CONFIRM_OBJECTS:]
        self._taken_bytes, self._confirmed_s = 0, time.monotonic()
        return found

    def _stand_idle(self, found: documents.BundleUpload, num_idle: int, refusal: StoreError | None) -> None:
        """Wait for objects that are just being deleted. Raises StoreError: for too long, or all addresses refused."""
        self._num_refused += bool(found["uploads"])
        if self._num_refused >= MOST_EXPIRED:
            said = "" if refusal is None else f" ({refusal.detail})"
            words = f"the content store refuses each address that the control plane gives{said}"
            raise StoreRefusedError(f"{words}: compare the clocks of both, and the key that signs with the store's")
        if num_idle >= MOST_WAITS:
            left = f"{found['num_waiting']} chunks of the folder are being deleted from the store, for too long"
            raise StoreSlowError(f"{left}; the operator checks the keeper `content` of `muster worker control`")
        if not found["uploads"]:
            self.pause(WAIT_S)


def sources_of(bundle: Bundle) -> Mapping[str, tuple[Found, int]]:
    """Return each chunk's digest with a file that has it, as it was scanned, and the chunk's first byte there."""
    scanned = {one.path: one for one in bundle.scan.found}
    found: dict[str, tuple[Found, int]] = {}
    for entry in bundle.manifest.entries:
        if entry.kind <= Kind.PROGRAM:
            for number, digest in enumerate(entry.parts):
                found.setdefault(digest, (scanned[entry.path], number * CHUNK_BYTES))
    return found
