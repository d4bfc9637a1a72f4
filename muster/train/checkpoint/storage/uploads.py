"""Object that is written piece by piece, without a size that is known before."""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.train.runtime.background import BackgroundTask

if TYPE_CHECKING:
    from muster.train.checkpoint.storage.bucket import Bucket

_MOST_PARTS = 10_000
_IN_FLIGHT = 4


class Upload:
    """File to write to. Parts are sent in the background, a few at once; the object exists, whole, only after
    ``finish``.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._waiting = bytearray()
        self._upload_id = ""
        self._num_parts = 0
        self._under_way: deque[BackgroundTask[dict[str, Any]]] = deque()
        self._done: list[dict[str, Any]] = []

    def write(self, content: bytes | memoryview) -> int:
        """Write content. Raises OSError, also for an earlier part."""
        part_bytes, left = self._bucket.part_bytes, memoryview(content).cast("B")
        while left:
            if len(self._waiting) == part_bytes:
                part, self._waiting = self._waiting, bytearray()
                self._send(part)
            room = part_bytes - len(self._waiting)
            self._waiting += left[:room]
            left = left[room:]
        return len(content)

    def flush(self) -> None:
        """Do nothing: parts are sent when they are full."""

    def finish(self) -> None:
        """Complete the object. Raises OSError."""
        if not self._num_parts:
            self._bucket.put(self._key, bytes(self._waiting))
            return
        self._send(self._waiting)
        while self._under_way:
            self._done.append(self._under_way.popleft().result())
        self._ask("complete", "complete_multipart_upload", MultipartUpload={"Parts": self._done})

    def abort(self) -> None:
        """Remove the parts that were sent; if that fails, the next attempt does it."""
        for part in self._under_way:
            part.wait()
        if self._upload_id:
            with contextlib.suppress(OSError):
                self._bucket.abort_upload(self._key, self._upload_id)

    def _send(self, part: bytearray) -> None:
        """Send a part, which must not be changed any more."""
        if not self._upload_id:
            self._upload_id = self._ask("begin upload", "create_multipart_upload")["UploadId"]
        if len(self._under_way) == _IN_FLIGHT:
            self._done.append(self._under_way.popleft().result())
        self._num_parts += 1
        if self._num_parts > _MOST_PARTS:
            most = _MOST_PARTS * self._bucket.part_bytes
            raise OSError(errno.EFBIG, f"holds more than {most} bytes", self._bucket.named(self._key))
        self._under_way.append(BackgroundTask(partial(self._sent, self._num_parts, part), "checkpoint-upload"))

    def _sent(self, number: int, part: bytearray) -> dict[str, Any]:
        answer = self._ask(f"put part {number}", "upload_part", PartNumber=number, Body=part)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _ask(self, what: str, call: str, **arguments: Any) -> Any:
        known: dict[str, Any] = {"UploadId": self._upload_id} if self._upload_id else {}
        return self._bucket.ask(what, self._key, call, **known, **arguments)
