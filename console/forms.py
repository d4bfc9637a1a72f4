"""HTML forms: small, urlencoded, each field once; and the token without which no form is accepted."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from muster.domain.errors import ForbiddenError, MalformedRequestError

MAX_FIELDS: Final = 200
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
_MASK_BYTES: Final = 16


async def _form(request: Request) -> Mapping[str, str]:
    """Return the form's fields. Raises ``MalformedRequestError``.

    The body is no urlencoded UTF-8 form, has a field twice, or too many of them.
    """
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    body = await request.body()
    if body and media_type != "application/x-www-form-urlencoded":
        raise MalformedRequestError("the body must be application/x-www-form-urlencoded")
    return _fields_in(body)


def _fields_in(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as fault:
        raise MalformedRequestError("the form cannot be read: it must be urlencoded UTF-8") from fault
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise MalformedRequestError("the form has a field twice")
    if any("\x00" in value for value in fields.values()):
        raise MalformedRequestError("the form holds U+0000")
    return fields


Form = Annotated[Mapping[str, str], Depends(_form)]


def csrf_token(secret_key: bytes, session_id: str) -> str:
    """Return a token.

    It differs on each page, so that compression reveals nothing; each is valid as long as the session.
    """
    mask = secrets.token_bytes(_MASK_BYTES)
    return (mask + _masked(_csrf_secret(secret_key, session_id), mask)).hex()


def require_csrf(secret_key: bytes, session_id: str, request: Request, fields: Mapping[str, str]) -> None:
    """Check the form's token. Raises ``ForbiddenError``: the change does not come from a page of this session."""
    site = request.headers.get("sec-fetch-site")
    given = fields.get(CSRF_FIELD) or request.headers.get(CSRF_HEADER, "")
    if site not in {None, "same-origin"} or not _opens(given, _csrf_secret(secret_key, session_id)):
        message = "this change does not come from a page of this session"
        raise ForbiddenError(message, suggestion="Open the page again and repeat it there.", reason="csrf")


def _opens(given: str, secret: bytes) -> bool:
    try:
        raw = bytes.fromhex(given)
    except ValueError:
        return False
    mask, masked = raw[:_MASK_BYTES], raw[_MASK_BYTES:]
    return len(raw) == 2 * _MASK_BYTES and hmac.compare_digest(_masked(masked, mask), secret)


def _csrf_secret(secret_key: bytes, session_id: str) -> bytes:
    return hmac.new(secret_key, b"console-csrf:" + session_id.encode(), hashlib.sha256).digest()[:_MASK_BYTES]


def _masked(text: bytes, mask: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(text, mask, strict=False))
