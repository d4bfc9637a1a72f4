"""The calls of S3 that the control plane signs: put, get with ranges, head, delete, and lists of version 2.

The signature is checked first: a request without one learns nothing of bucket and keys. An object is there once its
length and its SHA-256 are as the signature names them.
"""

import base64
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Final

import structlog

from muster.store.key_file import KeyFile
from muster.store.keys import MAX_KEY_BYTES, key_fault, manifest_of_checkpoint, manifest_of_files
from muster.store.objects import CHECKSUM, FULL
from muster.store.service.checkpoints import CheckpointFolders
from muster.store.service.disk import BadKeyError, DiskFullError, Draft, ObjectFolder
from muster.store.service.faults import CONTENT_TYPE, S3Error
from muster.store.service.gateway import Gateway
from muster.store.service.head import Head
from muster.store.service.listing import listing
from muster.store.service.ranges import range_of
from muster.store.service.replies import SAFE_HEADERS, answer, answer_error, head_bytes, plain
from muster.store.service.stream import Stream
from muster.store.signing import Request, SignatureError, query_of, verify

MAX_OBJECT_BYTES: Final = 1 << 30
"""Of one object: a chunk has 4 MiB, the largest manifest 256 MiB."""
METHODS: Final = ("DELETE", "GET", "HEAD", "PUT")
_HEALTH: Final = "/healthz"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Handler:
    """``working``: so many threads at a time digest and write. ``now``: the clock by which signatures are judged.

    ``folder``: None: the objects are another store's, and files of folders and of checkpoints alone are answered.
    """

    folder: ObjectFolder | None
    gateway: Gateway
    keys: KeyFile
    bucket: str
    region: str
    working: threading.Semaphore
    checkpoints: CheckpointFolders
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def handle(self, head: Head, stream: Stream) -> bool:
        """Answer one request. Return whether the connection may take another. Raises BrokenError."""
        # A body that is announced comes only after our leave: until then there is none to read.
        stream.expect_body(0 if head.awaits_continue else head.num_bytes or 0)
        try:
            self._dispatch(head, stream)
        except (S3Error, OSError) as error:
            refusal = _refusal(error)
            is_kept = head.is_kept and not head.awaits_continue and stream.drain()
            _log.info("request_refused", verb=head.method, code=refusal.code, fault=refusal.message)
            answer_error(stream, refusal, has_body=head.method != "HEAD", is_kept=is_kept)
            return is_kept
        return head.is_kept and (head.method == "PUT" or not head.awaits_continue) and stream.drain()

    def _dispatch(self, head: Head, stream: Stream) -> None:
        if head.path == _HEALTH and head.method == "GET":
            is_full = self.folder is not None and self.folder.is_full
            answer(stream, 200, b"full\n" if is_full else b"ok\n", {"Content-Type": "text/plain"})
            return
        if head.method not in METHODS:
            raise S3Error("MethodNotAllowed", f"{head.method} is not one of the store's", {"Allow": ", ".join(METHODS)})
        query = self._verified(head)
        bucket, _, key = head.path[1:].partition("/")
        if bucket != self.bucket:
            raise S3Error("NoSuchBucket", "the store has another bucket")
        if (files := manifest_of_files(key)) is not None and head.method in {"GET", "HEAD"}:
            self.gateway.serve(head, stream, *files, query)
        elif (manifest := manifest_of_checkpoint(key)) is not None and head.method in {"GET", "HEAD"}:
            self.checkpoints.serve(head, stream, manifest, query)
        elif self.folder is None:
            raise S3Error("NoSuchKey", "this process answers files of folders and checkpoints alone")
        else:
            self._dispatch_object(head, stream, self.folder, key, query)

    def _dispatch_object(
        self, head: Head, stream: Stream, folder: ObjectFolder, key: str, query: dict[str, str]
    ) -> None:
        if not key and head.method == "GET":
            space = {FULL: "1"} if folder.is_full else {}
            answer(stream, 200, listing(folder, self.bucket, query), {"Content-Type": CONTENT_TYPE, **space})
            return
        if (fault := key_fault(key)) is not None:
            raise S3Error("KeyTooLongError" if len(key) > MAX_KEY_BYTES else "InvalidArgument", fault)
        if head.method == "PUT":
            self._put(head, stream, folder, key)
        elif head.method == "DELETE":
            folder.delete(key)
            answer(stream, 204, b"", {})
        else:
            self._get(head, stream, folder, key, query)

    def _verified(self, head: Head) -> dict[str, str]:
        """Return the query of a request that is signed. Raises S3Error."""
        required = ("host", "content-length", CHECKSUM) if head.method == "PUT" else ("host",)
        try:
            query = query_of(head.query)
            request = Request(head.method, head.path, query, head.headers)
            verify(request, self.keys.named, self.region, now=self.now(), required=required)
        except SignatureError as error:
            raise S3Error.of(error) from None
        return query

    def _put(self, head: Head, stream: Stream, folder: ObjectFolder, key: str) -> None:
        num_bytes, expected = head.num_bytes or 0, head.headers[CHECKSUM]
        if num_bytes > MAX_OBJECT_BYTES:
            raise S3Error("EntityTooLarge", f"an object may have {MAX_OBJECT_BYTES:,} bytes")
        try:
            with folder.draft(num_bytes) as draft:
                if head.awaits_continue:
                    stream.send(b"HTTP/1.1 100 Continue\r\n\r\n")
                    stream.expect_body(num_bytes)
                if self._receive(stream, draft) != expected:
                    raise S3Error("BadDigest", "the body's SHA-256 is not the one that the signature names")
                status = draft.place(key)
        except DiskFullError as error:
            _log.warning("store_full", fault=str(error))
            raise S3Error("InsufficientStorage", f"{error}; the operator must make space") from error
        except BadKeyError as error:
            raise S3Error("InvalidArgument", str(error)) from error
        answer(stream, 200, b"", {"ETag": _etag(status), CHECKSUM: expected})

    def _receive(self, stream: Stream, draft: Draft) -> str:
        """Write the body to the draft, and return its checksum."""
        digest = hashlib.sha256()
        for piece in stream.pieces():
            with self.working:
                digest.update(piece)
                draft.write(piece)
        return base64.b64encode(digest.digest()).decode("ascii")

    def _get(self, head: Head, stream: Stream, folder: ObjectFolder, key: str, query: dict[str, str]) -> None:
        found = folder.open(key)
        if found is None:
            raise S3Error("NoSuchKey", "the store has no object of this key")
        file, status = found
        with os.fdopen(file, "rb", buffering=0) as content:
            etag, modified = _etag(status), formatdate(status.st_mtime, usegmt=True)
            is_same = head.headers.get("if-range", etag) in {etag, modified}
            part = range_of(head.headers.get("range") if is_same else None, status.st_size)
            headers = {
                "ETag": etag,
                "Last-Modified": modified,
                "Accept-Ranges": "bytes",
                "Content-Type": plain(query, "response-content-type", "application/octet-stream"),
                "Content-Disposition": plain(query, "response-content-disposition", "attachment"),
                **SAFE_HEADERS,
            }
            if part.is_partial:
                headers["Content-Range"] = f"bytes {part.start}-{part.start + part.num_bytes - 1}/{status.st_size}"
            stream.send(head_bytes(206 if part.is_partial else 200, part.num_bytes, headers))
            if head.method == "GET":
                stream.send_file(content, part.start, part.num_bytes)


def _refusal(error: S3Error | OSError) -> S3Error:
    if isinstance(error, S3Error):
        return error
    _log.exception("disk_failed")
    return S3Error("InternalError", f"the store's disk failed: {error.strerror}")


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
