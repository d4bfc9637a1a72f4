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
from muster.store.keys import MAX_KEY_BYTES, key_fault
from muster.store.objects import CHECKSUM, FULL
from muster.store.service.disk import BadKeyError, DiskFullError, Draft, ObjectFolder
from muster.store.service.faults import CONTENT_TYPE, S3Error, phrase
from muster.store.service.head import Head
from muster.store.service.listing import listing
from muster.store.service.ranges import range_of
from muster.store.service.stream import Stream
from muster.store.signing import Request, SignatureError, query_of, verify

MAX_OBJECT_BYTES: Final = 1 << 30
"""Of one object: a chunk has 4 MiB, the largest manifest 256 MiB."""
METHODS: Final = ("DELETE", "GET", "HEAD", "PUT")
_HEALTH: Final = "/healthz"
_SAFE_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Handler:
    """``working``: so many threads at a time digest and write. ``now``: the clock by which signatures are judged."""

    folder: ObjectFolder
    keys: KeyFile
    bucket: str
    region: str
    working: threading.Semaphore
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
            answer(stream, 200, b"full\n" if self.folder.is_full else b"ok\n", {"Content-Type": "text/plain"})
            return
        if head.method not in METHODS:
            raise S3Error("MethodNotAllowed", f"{head.method} is not one of the store's", {"Allow": ", ".join(METHODS)})
        query = self._verified(head)
        bucket, _, key = head.path[1:].partition("/")
        if bucket != self.bucket:
            raise S3Error("NoSuchBucket", "the store has another bucket")
        if not key and head.method == "GET":
            space = {FULL: "1"} if self.folder.is_full else {}
            answer(stream, 200, listing(self.folder, bucket, query), {"Content-Type": CONTENT_TYPE, **space})
            return
        if (fault := key_fault(key)) is not None:
            raise S3Error("KeyTooLongError" if len(key) > MAX_KEY_BYTES else "InvalidArgument", fault)
        if head.method == "PUT":
            self._put(head, stream, key)
        elif head.method == "DELETE":
            self.folder.delete(key)
            answer(stream, 204, b"", {})
        else:
            self._get(head, stream, key, query)

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

    def _put(self, head: Head, stream: Stream, key: str) -> None:
        num_bytes, expected = head.num_bytes or 0, head.headers[CHECKSUM]
        if num_bytes > MAX_OBJECT_BYTES:
            raise S3Error("EntityTooLarge", f"an object may have {MAX_OBJECT_BYTES:,} bytes")
        try:
            with self.folder.draft(num_bytes) as draft:
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

    def _get(self, head: Head, stream: Stream, key: str, query: dict[str, str]) -> None:
        found = self.folder.open(key)
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
                "Content-Type": _plain(query, "response-content-type", "application/octet-stream"),
                "Content-Disposition": _plain(query, "response-content-disposition", "attachment"),
                **_SAFE_HEADERS,
            }
            if part.is_partial:
                headers["Content-Range"] = f"bytes {part.start}-{part.start + part.num_bytes - 1}/{status.st_size}"
            stream.send(head_bytes(206 if part.is_partial else 200, part.num_bytes, headers))
            if head.method == "GET":
                stream.send_file(content, part.start, part.num_bytes)


def answer(stream: Stream, status: int, body: bytes, headers: dict[str, str]) -> None:
    stream.send(head_bytes(status, len(body), headers) + body)


def answer_error(stream: Stream, error: S3Error, *, has_body: bool, is_kept: bool) -> None:
    document = error.document()
    headers = {"Content-Type": CONTENT_TYPE, **error.headers, **({} if is_kept else {"Connection": "close"})}
    if error.code == "SlowDown":
        headers["Retry-After"] = "1"
    stream.send(head_bytes(error.status, len(document), headers) + (document if has_body else b""))


def head_bytes(status: int, num_bytes: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {phrase(status)}", f"Date: {formatdate(usegmt=True)}"]
    if status != 204:
        lines.append(f"Content-Length: {num_bytes}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _refusal(error: S3Error | OSError) -> S3Error:
    if isinstance(error, S3Error):
        return error
    _log.exception("disk_failed")
    return S3Error("InternalError", f"the store's disk failed: {error.strerror}")


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


def _plain(query: dict[str, str], name: str, default: str) -> str:
    """Return a header that the signed query gives. Raises S3Error: it could end the header."""
    value = query.get(name, default)
    if not (value.isascii() and value.isprintable()):
        raise S3Error("InvalidArgument", f"{name} must be printable ASCII")
    return value
