"""The body of a telemetry report: read in pieces under two limits, inflated as it comes, decoded strictly."""

import zlib
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from muster.domain.errors import (
    FieldFault,
    MalformedRequestError,
    PayloadTooLargeError,
    UnsupportedMediaTypeError,
    UpgradeRequiredError,
    ValidationFailedError,
)
from muster.domain.gpu.metrics import SCHEMA, WIDTHS
from muster.wire.readable import readable_part
from muster.wire.telemetry import TELEMETRY_PROTOCOL, Report, in_present_schema

MAX_WIRE_BYTES: Final = 4 << 20
MAX_INFLATED_BYTES: Final = 32 << 20
MAX_RATIO: Final = 100
"""Largest ratio of inflation. Reports shrink to a fifth; a body that grows a hundredfold is a bomb."""
_FREE_BYTES: Final = 64 << 10
"""Size up to which the ratio does not matter."""
_GZIP: Final = 31
_JSON: Final = b"application/json"
_ESCAPE: Final = b"\\"
_ESCAPED_CONTROL: Final = b"\\u00"
_FORBIDDEN: Final = ("\x00", "\x1f")

_decode: Final = msgspec.json.Decoder(Report).decode


class _Versions(msgspec.Struct):
    protocol: Any = None
    schema: Any = None


class BodyReader:
    """Reader of the pieces of one body. The middleware limits the size on the wire as well."""

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        media_type, encoding = _described(headers)
        if media_type != _JSON and media_type.split(b";")[0].strip().lower() != _JSON:
            raise UnsupportedMediaTypeError("the Content-Type must be application/json")
        if encoding.lower() not in {b"identity", b"gzip"}:
            raise UnsupportedMediaTypeError(
                "this Content-Encoding is not accepted",
                suggestion="Send JSON as it is, or with Content-Encoding: gzip.",
            )
        self._inflater = zlib.decompressobj(_GZIP) if encoding.lower() == b"gzip" else None
        self._pieces: list[bytes] = []
        self._num_wire = 0
        self._num_bytes = 0

    def feed(self, piece: bytes) -> None:
        """Take a piece. Raises ``PayloadTooLargeError`` or ``MalformedRequestError`` as early as possible."""
        self._num_wire += len(piece)
        if self._num_wire > MAX_WIRE_BYTES:
            raise PayloadTooLargeError(f"the body is larger than {MAX_WIRE_BYTES} bytes", limit_bytes=MAX_WIRE_BYTES)
        if self._inflater is None:
            self._keep(piece)
        elif piece:
            self._inflate(self._inflater, piece)

    def _inflate(self, inflater: "zlib._Decompress", piece: bytes) -> None:
        allowed = min(MAX_INFLATED_BYTES, max(_FREE_BYTES, self._num_wire * MAX_RATIO))
        try:
            self._keep(inflater.decompress(piece, allowed - self._num_bytes + 1))
        except zlib.error:
            raise MalformedRequestError("the body is not gzip") from None
        if self._num_bytes > allowed:
            raise PayloadTooLargeError(
                "the body inflates to more than it may", limit_bytes=MAX_INFLATED_BYTES, limit_ratio=MAX_RATIO
            )
        if inflater.unused_data:
            raise MalformedRequestError("the gzip body has data after its end")

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._num_bytes += len(piece)
            self._pieces.append(piece)

    def whole(self) -> bytes:
        """Return the whole body. Raises ``MalformedRequestError``: nothing came, or the gzip stream was cut short."""
        if self._inflater is not None and not self._inflater.eof:
            raise MalformedRequestError("the gzip body is cut short")
        if not self._num_bytes:
            raise MalformedRequestError("the body is empty; a report is needed")
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


def _described(headers: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """Return the body's media type and encoding, found in one pass."""
    media_type = encoding = None
    for name, value in headers:
        if name == b"content-type":
            media_type = _only(media_type, name, value)
        elif name == b"content-encoding":
            encoding = _only(encoding, name, value)
    return media_type or b"", encoding or b"identity"


def _only(found: bytes | None, name: bytes, value: bytes) -> bytes:
    if found is not None:
        raise MalformedRequestError(f"the header {name.decode()} is given twice")
    return value


@dataclass(frozen=True, slots=True)
class ReadReport:
    """A report. ``set_aside``: UUIDs of GPUs whose samples are no readings.

    ``num_values``: such values of its events.
    """

    report: Report
    set_aside: tuple[str, ...] = ()
    num_values: int = 0


def read_report(body: bytes) -> ReadReport:
    """Return the report in ``body``, read strictly, or else without the readings that are no numbers.

    It has the present schema, whichever readable one was sent.

    Raises:
        MalformedRequestError: no JSON in UTF-8.
        ValidationFailedError: JSON, but no report: a field unknown, missing, of another type or out of its bounds.
        UpgradeRequiredError: of a protocol or schema that this server does not support.
    """
    try:
        return ReadReport(_read_strictly(body))
    except (MalformedRequestError, ValidationFailedError):
        found = readable_part(body)
        if found is None:
            raise
    return ReadReport(_read_strictly(found.body), found.gpus, found.num_values)


def _read_strictly(body: bytes) -> Report:
    try:
        report = _decode(body)
    except msgspec.ValidationError as error:
        _refuse_invalid(body, str(error))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequestError(f"the body is not JSON: {_printable(str(error))}") from None
    except RecursionError:
        raise MalformedRequestError("the body is nested too deep") from None
    _require_supported(report.protocol, report.schema)
    if _ESCAPE in body and _ESCAPED_CONTROL in body:  # one byte is found in a tenth of the time
        _require_clean(report)
    return _in_present_schema(report)


def _in_present_schema(report: Report) -> Report:
    try:
        gpus = in_present_schema(report.gpus, report.schema)
    except ValueError as error:
        raise _invalid(str(error)) from None
    return report if report.schema == SCHEMA else msgspec.structs.replace(report, schema=SCHEMA, gpus=gpus)


def _refuse_invalid(body: bytes, detail: str) -> NoReturn:
    """Refuse an invalid body.

    A later protocol may have other fields: then the version is the fault, and the agent keeps it.
    """
    try:
        versions = msgspec.json.decode(body, type=_Versions)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        versions = _Versions()
    if isinstance(versions.protocol, int) and isinstance(versions.schema, int):
        _require_supported(versions.protocol, versions.schema)
    raise _invalid(_printable(detail))


def _require_supported(protocol: int, schema: int) -> None:
    if protocol != TELEMETRY_PROTOCOL or schema not in WIDTHS:
        raise UpgradeRequiredError(
            f"protocol {protocol:.6g} with schema {schema:.6g} is not supported; "
            f"this server supports protocol {TELEMETRY_PROTOCOL} with schemas {min(WIDTHS)} to {SCHEMA}",
            spoken=TELEMETRY_PROTOCOL,
            schema=SCHEMA,
        )


def _require_clean(report: Report) -> None:
    """Check every text. Called only where an escape could have made such a character."""
    waiting: list[Any] = [msgspec.to_builtins(report)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if any(character in value for character in _FORBIDDEN):
                raise _invalid("a text holds U+0000 or U+001F")
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value


def _invalid(detail: str) -> ValidationFailedError:
    return ValidationFailedError(detail, faults=(FieldFault("/", "invalid_message", detail),))


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:500]
