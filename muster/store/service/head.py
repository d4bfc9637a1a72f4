"""The head of a request of HTTP/1.1, read strictly: what two readers could understand differently is refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from muster.store.service.faults import S3Error

MAX_HEAD_BYTES: Final = 32 << 10
MAX_HEADERS: Final = 100
_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*?)[ \t]*")


@dataclass(frozen=True, slots=True)
class Head:
    """Line and headers of a request. ``path``: decoded, ``query``: as it came. ``headers``: by name in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    is_kept: bool
    """Whether the client keeps the connection for another request."""

    @property
    def num_bytes(self) -> int | None:
        """Length of the body; None if the request states none."""
        text = self.headers.get("content-length")
        return None if text is None else int(text)

    @property
    def awaits_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"


def head_of(content: bytes) -> Head:
    """Return the head of ``content``, all before the empty line. Raises S3Error."""
    first, *rest = content.split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise S3Error("InvalidRequest", "the first line is none of an HTTP/1.1 request for a path")
    headers = _headers_of(rest)
    if "transfer-encoding" in headers:
        raise S3Error("MissingContentLength", "send the body with Content-Length, not in pieces")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise S3Error("InvalidRequest", "Content-Length must be a number")
    path, _, query = line[2].decode("ascii").partition("?")
    try:
        decoded = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidArgument", "the path must be UTF-8") from None
    wish = headers.get("connection", "").lower()
    is_kept = wish != "close" if line[3] == b"1" else wish == "keep-alive"
    return Head(line[1].decode("ascii"), decoded, query, headers, is_kept)


def _headers_of(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise S3Error("RequestHeaderSectionTooLarge", f"send {MAX_HEADERS} headers at most")
    headers: dict[str, str] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise S3Error("InvalidRequest", "a header cannot be read")
        name = found[1].decode("ascii").lower()
        if name in headers:
            raise S3Error("InvalidRequest", "a header stands twice")
        headers[name] = found[2].decode("latin-1")
    return headers
