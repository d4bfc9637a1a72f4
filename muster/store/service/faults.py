"""Errors of our own service, as S3 answers them."""

from http import HTTPStatus
from typing import Final
from xml.sax.saxutils import escape

from muster.store.signing import SignatureError

CONTENT_TYPE: Final = "application/xml"
_STATUS: Final = {
    "AccessDenied": 403,
    "BadDigest": 400,
    "EntityTooLarge": 400,
    "IncompleteBody": 400,
    "InsufficientStorage": 507,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidObjectState": 403,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "KeyTooLongError": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NotImplemented": 501,
    "RequestHeaderSectionTooLarge": 400,
    "RequestTimeTooSkewed": 403,
    "RequestTimeout": 400,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
}
"""Code → status. All but InsufficientStorage are S3's own."""


class S3Error(Exception):
    """A request that is refused. ``headers``: more of the answer."""

    def __init__(self, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        self.code = code
        self.message = message
        self.status = _STATUS[code]
        self.headers = headers or {}
        super().__init__(message)

    @classmethod
    def of(cls, error: SignatureError) -> "S3Error":
        return cls(error.code, error.detail)

    def document(self) -> bytes:
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{self.code}</Code><Message>{escape(self.message)}</Message></Error>"
        ).encode()


def phrase(status: int) -> str:
    return HTTPStatus(status).phrase
