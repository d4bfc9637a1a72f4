"""Answers of HTTP: their heads, and errors as S3 words them."""

from email.utils import formatdate
from typing import Final

from muster.store.service.faults import CONTENT_TYPE, S3Error, phrase
from muster.store.service.stream import Stream

SAFE_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}


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


def plain(query: dict[str, str], name: str, default: str) -> str:
    """Return a header that the signed query gives. Raises S3Error: it could end the header."""
    value = query.get(name, default)
    if not (value.isascii() and value.isprintable()):
        raise S3Error("InvalidArgument", f"{name} must be printable ASCII")
    return value
