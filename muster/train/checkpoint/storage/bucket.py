"""Objects under one prefix of an S3-compatible store, by boto3, which only jobs with checkpoints there need.

boto3 finds endpoint and user itself: by ``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID`` and so on, or by a file of
credentials; the region is ``AWS_REGION``'s, which boto3 does not read, before it is ``AWS_DEFAULT_REGION``'s.
Throttling (503), server errors and timeouts are tried again with growing pauses, eight times in all or as often as
``AWS_MAX_ATTEMPTS`` says. After that an OSError names the object and the store's own error code, and no secret.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.train.checkpoint.storage.places import S3Place
from muster.train.runtime.background import BackgroundTask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PART_BYTES = 32 << 20
"""Size of a part of an upload or a read. A store takes 10,000 parts, so an object may hold 320 GiB."""
_IN_FLIGHT = 4
_MOST_ATTEMPTS = 8
_MOST_KEYS = 1000
_MOST_CONFLICTS = 5
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_TAKEN = frozenset({"PreconditionFailed", "412"})
_CONFLICT = frozenset({"ConditionalRequestConflict", "409"})


class MissingExtraError(RuntimeError):
    """A package that only some jobs need is not installed here."""


@dataclass(frozen=True)
class Listed:
    """Listed object. ``key``: below the prefix. ``size`` in bytes. ``written_unix_s``: by the store's clock."""

    key: str
    size: int
    written_unix_s: float


class Bucket:
    """Objects of one place. Keys are relative to its prefix. Every method raises OSError."""

    def __init__(self, place: S3Place, credentials_file: Path | None = None, *, part_bytes: int = PART_BYTES) -> None:
        """Connect. ``credentials_file``: in the form of ~/.aws/credentials, its profile ``default``.

        Raises:
            MissingExtraError: there is no boto3 here.
            OSError: the file of credentials cannot be read, or boto3 finds no address of the store.
        """
        self.place = place
        self.part_bytes = part_bytes
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._client = _client(place, credentials_file)

    def put(self, key: str, content: bytes, *, only_if_new: bool = False) -> None:
        """Store an object. Raises FileExistsError if it has to be new and is not."""
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if only_if_new else {}
        for tries_left in reversed(range(_MOST_CONFLICTS)):
            try:
                self.ask("put", key, "put_object", Body=content, **condition)
            except _ConflictError:
                if not tries_left:
                    raise
            else:
                return

    def get(self, key: str) -> bytes:
        """Return an object's content. Raises FileNotFoundError."""
        return b"".join(self.read(key))

    def read(self, key: str, size: int | None = None) -> Iterator[bytes]:
        """Yield an object in pieces, in order, a few of them requested at once. Raises FileNotFoundError.

        ``size``: its size where it is known already.
        """
        size = self.size(key) if size is None else size
        if size == 0:
            return
        under_way: deque[BackgroundTask[bytes]] = deque()
        try:
            for begin in range(0, size, self.part_bytes):
                if len(under_way) == _IN_FLIGHT:
                    yield under_way.popleft().result()
                piece = partial(self._piece, key, begin, min(begin + self.part_bytes, size))
                under_way.append(BackgroundTask(piece, "checkpoint-read"))
            while under_way:
                yield under_way.popleft().result()
        finally:
            for left in under_way:
                left.wait()

    def _piece(self, key: str, begin: int, end: int) -> bytes:
        """Return one piece. A body that breaks off is requested again: boto3 repeats requests, but no
        half-read answer.
        """

        def read(**arguments: Any) -> bytes:
            content: bytes = self._client.get_object(**arguments)["Body"].read()
            return content

        for tries_left in reversed(range(_MOST_CONFLICTS)):
            try:
                piece: bytes = self._answered("get", key, read, Range=f"bytes={begin}-{end - 1}")
            except _BrokenOffError:
                if not tries_left:
                    raise
            else:
                return piece
        raise AssertionError("the last try has returned or raised")

    def size(self, key: str) -> int:
        """Return an object's size in bytes. Raises FileNotFoundError."""
        return int(self.ask("head", key, "head_object")["ContentLength"])

    def signed(self, key: str, within_s: int) -> str:
        """Return an address that reads the object, or ranges of it, for so long, with no other credential."""
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415  # as below

        wanted = {"Bucket": self.place.bucket, "Key": self._prefix + key}
        try:
            address: str = self._client.generate_presigned_url("get_object", Params=wanted, ExpiresIn=within_s)
        except BotoCoreError as fault:
            raise OSError(errno.EIO, f"sign failed: {type(fault).__name__}", self.named(key)) from None
        return address

    def listed(self, below: str = "") -> Iterator[Listed]:
        """Yield every object whose key begins with ``below``, in the order of keys."""
        asked: dict[str, Any] = {"Prefix": self._prefix + below}
        while True:
            page = self.ask("list", below, "list_objects_v2", keyed=False, **asked)
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._prefix)
                yield Listed(key, found["Size"], found["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the keys that exist."""
        left = list(keys)
        while left:
            some, left = left[:_MOST_KEYS], left[_MOST_KEYS:]
            asked = {"Objects": [{"Key": self._prefix + key} for key in some], "Quiet": True}
            answer = self.ask("delete", some[0], "delete_objects", keyed=False, Delete=asked)
            for fault in answer.get("Errors", ()):
                raise OSError(errno.EIO, f"could not be deleted: {fault.get('Code')}", self.named(some[0]))

    def unfinished_uploads(self, below: str = "") -> list[tuple[str, str]]:
        """Return (key, upload id) of uploads in parts that were begun and not completed."""
        asked: dict[str, Any] = {"Prefix": self._prefix + below}
        uploads: list[tuple[str, str]] = []
        while True:
            page = self.ask("list", below, "list_multipart_uploads", keyed=False, **asked)
            uploads += [(each["Key"].removeprefix(self._prefix), each["UploadId"]) for each in page.get("Uploads", ())]
            if not page.get("IsTruncated"):
                return uploads
            asked.update(KeyMarker=page["NextKeyMarker"], UploadIdMarker=page["NextUploadIdMarker"])

    def abort_upload(self, key: str, upload_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.ask("abort", key, "abort_multipart_upload", UploadId=upload_id)

    def ask(self, what: str, key: str, call: str, *, keyed: bool = True, **arguments: Any) -> Any:
        """Call ``call`` of boto3's client; ``what`` names the action in an error."""
        return self._answered(what, key, getattr(self._client, call), keyed=keyed, **arguments)

    def _answered(self, what: str, key: str, call: Any, *, keyed: bool = True, **arguments: Any) -> Any:
        from botocore.exceptions import (  # noqa: PLC0415  # half a second, and only object stores need it
            BotoCoreError,
            ClientError,
            ConnectTimeoutError,
            ReadTimeoutError,
        )

        if keyed:
            arguments["Key"] = self._prefix + key
        try:
            return call(Bucket=self.place.bucket, **arguments)
        except ClientError as fault:
            raise self._refusal(what, key, fault.response) from fault
        except BotoCoreError as fault:  # its text may name endpoint and user: its kind is enough
            kind = _BrokenOffError if what == "get" else OSError
            number = errno.ETIMEDOUT if isinstance(fault, (ConnectTimeoutError, ReadTimeoutError)) else errno.EIO
            raise kind(number, f"{what} failed: {type(fault).__name__}", self.named(key)) from None

    def _refusal(self, what: str, key: str, answer: dict[str, Any]) -> OSError:
        code = str(answer.get("Error", {}).get("Code", ""))
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", "?")
        why = f"{what} was refused: {code} (HTTP {status})"
        if code in _MISSING:
            return FileNotFoundError(errno.ENOENT, "there is no such object", self.named(key))
        if code in _TAKEN:
            return FileExistsError(errno.EEXIST, "exists already", self.named(key))
        if code in _CONFLICT:
            return _ConflictError(errno.EAGAIN, why, self.named(key))
        number = errno.EACCES if status in {401, 403} else errno.EIO
        return OSError(number, why, self.named(key))

    def named(self, key: str) -> str:
        return f"s3://{self.place.bucket}/{self._prefix}{key}"


class _ConflictError(OSError):
    """Another client wrote under the same condition at that moment: try again."""


class _BrokenOffError(OSError):
    """The store gave no answer, or half of one."""


def _client(place: S3Place, credentials_file: Path | None) -> Any:
    try:
        import boto3  # noqa: PLC0415  # a job with checkpoints on a disk has none
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415
    except ImportError as fault:
        raise MissingExtraError(
            f"checkpoints in {place} need boto3, which is not installed here: pip install 'muster-train[s3]'"
        ) from fault
    retries: dict[str, Any] = {} if os.environ.get("AWS_MAX_ATTEMPTS") else {"total_max_attempts": _MOST_ATTEMPTS}
    config = Config(
        retries={"mode": "standard", **retries},
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=2 * _IN_FLIGHT,
        signature_version="s3v4",  # addresses get the old one otherwise, which newer regions refuse
        # Stores other than Amazon's refuse what boto3 adds of its own; our SHA-256 says more.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        return boto3.Session(**_credentials(credentials_file)).client("s3", region_name=_region(), config=config)
    except (BotoCoreError, ValueError) as fault:
        raise OSError(errno.EINVAL, f"cannot be connected to: {type(fault).__name__}", str(place)) from None


def _region() -> str | None:
    """Return the region, or None if boto3 has to find it itself."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


def _credentials(path: Path | None) -> dict[str, str]:
    """Return the credentials of that file and of no other place; none if boto3 has to find them itself."""
    if path is None:
        return {}
    from botocore.credentials import SharedCredentialProvider  # noqa: PLC0415  # as above

    with path.open("rb"):  # boto3 ignores a file that it cannot read
        found = SharedCredentialProvider(str(path), "default").load()
    if found is None:
        raise OSError(errno.EINVAL, "needs a [default] with aws_access_key_id and aws_secret_access_key", str(path))
    token = {} if found.token is None else {"aws_session_token": found.token}
    return {"aws_access_key_id": found.access_key, "aws_secret_access_key": found.secret_key, **token}
