"""The Range header: one range of bytes, as clients resume by."""

import re
from typing import Final, NamedTuple

from muster.store.service.faults import S3Error

_ONE: Final = re.compile(r"bytes=(?:(\d{1,18})-(\d{1,18})?|-(\d{1,18}))")


class Part(NamedTuple):
    """Bytes of an object that are answered."""

    start: int
    num_bytes: int
    is_partial: bool


def range_of(text: str | None, size: int) -> Part:
    """Return the part that a Range header names; the whole where it names none, several, or has another unit.

    Raises S3Error: it begins behind the end.
    """
    found = None if text is None else _ONE.fullmatch(text.strip())
    if found is None:
        return Part(0, size, is_partial=False)
    first, last, suffix = found.groups()
    start = max(0, size - int(suffix)) if suffix is not None else int(first)
    end = size if last is None else min(size, int(last) + 1)
    if last is not None and int(last) < start:
        return Part(0, size, is_partial=False)
    if start >= size:
        raise S3Error("InvalidRange", "the range begins behind the end", {"Content-Range": f"bytes */{size}"})
    return Part(start, end - start, is_partial=True)
