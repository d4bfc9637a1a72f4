"""Places of checkpoints in an object store: ``s3://bucket/prefix``. They are parsed here; ``bucket``
connects to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*")
_MOST_PREFIX = 512


@dataclass(frozen=True)
class S3Place:
    """Place in a bucket. ``prefix``: without slashes around it; empty: the whole bucket."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")

    @classmethod
    def of(cls, text: str) -> S3Place:
        """Parse a place. Raises ValueError if the text names no place in a bucket."""
        bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
        prefix = prefix.removesuffix("/")
        is_prefix = not prefix or (
            len(prefix) <= _MOST_PREFIX
            and _PREFIX.fullmatch(prefix) is not None
            and not {".", ".."} & set(prefix.split("/"))
        )
        if not text.startswith(SCHEME) or not _BUCKET.fullmatch(bucket) or not is_prefix:
            raise ValueError(
                f"{text!r} is no place in an object store: it must be s3://BUCKET/PREFIX, the bucket in lower case, the"
                f" prefix of letters, digits and !_.*'()- between single slashes, {_MOST_PREFIX} characters at most"
            )
        return cls(bucket, prefix)


def is_s3(location: object) -> bool:
    return str(location).startswith(SCHEME)
