"""Lists of objects, of S3's version 2."""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Final
from xml.sax.saxutils import escape

from muster.store.keys import key_fault
from muster.store.service.disk import Found, ObjectFolder
from muster.store.service.faults import S3Error

MAX_KEYS: Final = 1000


def listing(folder: ObjectFolder, bucket: str, query: Mapping[str, str]) -> bytes:
    """Return a page as S3's document. Raises S3Error: the query asks for what this store does not do."""
    if query.get("list-type") != "2":
        raise S3Error("NotImplemented", "the store knows lists of list-type=2 alone")
    if query.get("delimiter"):
        raise S3Error("NotImplemented", "the store knows no delimiter")
    prefix = query.get("prefix", "")
    if (above := prefix.rpartition("/")[0]) and key_fault(above) is not None:
        raise S3Error("InvalidArgument", "no key has this prefix")
    limit = _limit(query.get("max-keys", str(MAX_KEYS)))
    after = _position(query["continuation-token"]) if "continuation-token" in query else query.get("start-after", "")
    found = list(islice(folder.list(prefix, after), limit + 1))
    return _document(bucket, prefix, limit, found)


def _document(bucket: str, prefix: str, limit: int, found: list[Found]) -> bytes:
    page = found[:limit]
    is_cut = bool(page) and len(found) > limit
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
        f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{limit}</MaxKeys>",
        f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(is_cut).lower()}</IsTruncated>",
        *(_entry(each) for each in page),
    ]
    if is_cut:
        token = base64.urlsafe_b64encode(page[-1].key.encode()).decode("ascii")
        parts.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
    parts.append("</ListBucketResult>")
    return "".join(parts).encode()


def _entry(found: Found) -> str:
    modified = datetime.fromtimestamp(found.modified_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"<Contents><Key>{escape(found.key)}</Key><LastModified>{modified}</LastModified>"
        f"<Size>{found.num_bytes}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise S3Error("InvalidArgument", "max-keys must be a number")
    return min(int(text), MAX_KEYS)


def _position(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise S3Error("InvalidArgument", "the continuation token is not one of this store") from None
