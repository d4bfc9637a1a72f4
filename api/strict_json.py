"""Strict reading of a JSON body, so that nothing in it can surprise a database or a later reader."""

import json
import math
import re
from typing import Any, Final, NoReturn, TypeVar

from pydantic import BaseModel

from muster.domain.errors import FieldFault, MalformedRequestError, ValidationFailedError
from muster.domain.validation import validated

MAX_INTEGER: Final = 2**63 - 1
_MAX_DIGITS: Final = 20
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_BOM: Final = b"\xef\xbb\xbf"

Model = TypeVar("Model", bound=BaseModel)


class _UnfitNumberError(ValueError):
    """A number that JSON can write and that cannot be stored."""


def read_model(body: bytes, model: type[Model], *, max_depth: int) -> Model:
    """Return ``body`` as ``model``.

    Raises:
        MalformedRequestError: not one JSON object in UTF-8, a key twice, nested too deep.
        ValidationFailedError: well-formed, but with fields or values that are not accepted.
    """
    return validated(model, read_document(body, max_depth=max_depth))


def read_document(body: bytes, *, max_depth: int) -> dict[str, Any]:
    """Return the JSON object in ``body``; raises as ``read_model``."""
    if not body:
        raise MalformedRequestError("the body is empty; a JSON object is needed")
    if body.startswith(_BOM):
        raise MalformedRequestError("the body begins with a byte order mark")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedRequestError(f"the body is not UTF-8 (byte {error.start})") from None
    _require_shallow(body, max_depth)
    try:
        document = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except _UnfitNumberError as error:
        raise _value_fault(str(error)) from None
    except json.JSONDecodeError as error:
        raise MalformedRequestError(
            f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    if not isinstance(document, dict):
        raise MalformedRequestError("the body must be one JSON object")
    _require_clean(document, "")
    return document


def _require_shallow(body: bytes, max_depth: int) -> None:
    """Refuse at the first bracket too deep, so a hostile body costs no more than ``max_depth`` brackets."""
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return
    depth = 0
    for match in _TOKENS.finditer(body):
        token = match[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth > max_depth:
                raise MalformedRequestError(f"the body is nested deeper than {max_depth} levels")
        elif token in (b"]", b"}"):
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise MalformedRequestError("an object holds the same key twice")
    return document


def _refuse_constant(_name: str) -> NoReturn:
    raise _UnfitNumberError("NaN and Infinity are no JSON numbers")


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS or abs(number := int(text)) > MAX_INTEGER:
        raise _UnfitNumberError("an integer is outside ±(2^63 - 1)")
    return number


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _UnfitNumberError("a number is too large for a 64-bit float")
    return number


def _require_clean(value: Any, pointer: str) -> None:
    if isinstance(value, str):
        _require_clean_text(value, pointer)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _require_clean_text(key, pointer or "/")
            _require_clean(inner, f"{pointer}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _require_clean(inner, f"{pointer}/{index}")


def _require_clean_text(text: str, pointer: str) -> None:
    if "\x00" in text:
        raise _value_fault("a string holds U+0000", pointer)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise _value_fault("a string holds a lone surrogate", pointer)


def _value_fault(detail: str, pointer: str = "") -> ValidationFailedError:
    return ValidationFailedError(detail, faults=(FieldFault(pointer or "/", "unfit_value", detail),))
