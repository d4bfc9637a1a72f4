"""An object that is written piece by piece, of a size that nobody knows before."""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    from muster.train.bucket import Bucket

_MOST_PARTS = 10_000
_IN_FLIGHT = 4


class Upload:
    """A file to write to. Its parts go up beside, a few at once; the object is there, whole, after ``finish`` alone."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._waiting = bytearray()
        self._upload_id = ""
        self._num_parts = 0
        self._under_way: deque[Future[dict[str, Any]]] = deque()
        self._done: list[dict[str, Any]] = []
        self._pool: ThreadPoolExecutor | None = None

    def write(self, content: bytes | memoryview) -> int:
        """Raises OSError, also for a part that went before."""
        self._waiting += content
        while len(self._waiting) > self._bucket.part_bytes:
            part = bytes(memoryview(self._waiting)[: self._bucket.part_bytes])
            del self._waiting[: self._bucket.part_bytes]
            self._send(part)
        return len(content)

    def flush(self) -> None:
        """Parts go when they are full."""

    def finish(self) -> None:
        """Raises OSError."""
        if not self._num_parts:
            self._bucket.put(self._key, bytes(self._waiting))
            return
        self._send(bytes(self._waiting))
        while self._under_way:
            self._done.append(self._under_way.popleft().result())
        self._ask("complete", "complete_multipart_upload", MultipartUpload={"Parts": self._done})
        self._close()

    def abort(self) -> None:
        """What went up goes away; if that fails, the next attempt does it."""
        for part in self._under_way:
            part.cancel()
        self._close()
        if self._upload_id:
            with contextlib.suppress(OSError):
                self._bucket.abort_upload(self._key, self._upload_id)

    def _send(self, part: bytes) -> None:
        if self._pool is None:
            begun = self._ask("begin upload", "create_multipart_upload")
            self._upload_id = begun["UploadId"]
            self._pool = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="checkpoint-upload")
        if len(self._under_way) == _IN_FLIGHT:
            self._done.append(self._under_way.popleft().result())
        self._num_parts += 1
        if self._num_parts > _MOST_PARTS:
            most = _MOST_PARTS * self._bucket.part_bytes
            raise OSError(errno.EFBIG, f"holds more than {most} bytes", self._bucket.named(self._key))
        self._under_way.append(self._pool.submit(self._sent, self._num_parts, part))

    def _sent(self, number: int, part: bytes) -> dict[str, Any]:
        answer = self._ask(f"put part {number}", "upload_part", PartNumber=number, Body=part)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _ask(self, what: str, call: str, **asked: Any) -> Any:
        known: dict[str, Any] = {"UploadId": self._upload_id} if self._upload_id else {}
        return self._bucket.ask(what, self._key, call, **known, **asked)

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
