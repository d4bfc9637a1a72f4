"""Base types that keep out what databases and JSON cannot hold: NaN, U+0000, lone surrogates, numbers past 2^63."""

import posixpath
import re
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationInfo

from muster.domain.times import in_utc

MAX_STRING: Final = 4096
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
_OBJECT_PREFIX: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()-]+)*/?")
_ENV_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


STORED: Final = {"is_stored": True}
"""The context for reading a document that was accepted before: rules that were added since do not apply to it."""


def is_stored(info: ValidationInfo) -> bool:
    return isinstance(info.context, dict) and info.context.get("is_stored") is True


class StrictModel(BaseModel):
    """An immutable model that refuses unknown fields, coercion between types, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)
    OTHER_KEYS: ClassVar[tuple[str, ...]] = ()
    """Keys accepted in addition to the fields: a validator turns them into fields before the fields are read."""


def _clean_text(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not contain U+0000")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must not contain a lone surrogate")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        odd = next(character for character in text if not character.isprintable())
        raise ValueError(f"must be printable characters in one line; it has U+{ord(odd):04X}")
    return text


def clean_name(text: str) -> str:
    """Return a name. Raises ``ValueError``, whose text does not repeat it: it may be a secret in the wrong field."""
    if not _NAME.fullmatch(text):
        raise ValueError(
            "must be 1 to 63 of a-z, 0-9, dot, dash and underscore, and begin and end with a letter or digit"
        )
    return text


def _env_key(text: str) -> str:
    if not _ENV_KEY.fullmatch(text):
        raise ValueError("must be a letter or underscore, then letters, digits and underscores, 128 at most")
    return text


def absolute_path(text: str) -> str:
    """Return ``text``. Raise ValueError where it is no absolute path, or no normal form of one."""
    if not text.startswith("/") or text.startswith("//") or posixpath.normpath(text) != (text.rstrip("/") or "/"):
        raise ValueError("must be an absolute path without '..', '.' or doubled slashes")
    return text


def object_prefix(text: str) -> str:
    """Return ``text``. Raise ValueError where it is no ``s3://bucket/prefix``.

    ``muster.train.checkpoint.storage.places`` reads the same form.
    """
    if not _OBJECT_PREFIX.fullmatch(text) or {".", ".."} & set(text.split("/")):
        raise ValueError(
            "must be s3://BUCKET/PREFIX: the bucket in lower case, the prefix of letters, digits and !_.*'()- between"
            " single slashes, without '.' or '..'"
        )
    return text


Text = Annotated[str, AfterValidator(_clean_text), Field(max_length=MAX_STRING)]
Line = Annotated[str, AfterValidator(_clean_text), Field(min_length=1, max_length=MAX_STRING, pattern=r"^[^\r\n]*$")]
Printable = Annotated[str, AfterValidator(_printable), Field(min_length=1, max_length=MAX_STRING)]
AbsolutePath = Annotated[Line, AfterValidator(absolute_path)]
ObjectPrefix = Annotated[str, AfterValidator(object_prefix), Field(max_length=400)]
Name = Annotated[str, AfterValidator(clean_name), Field(min_length=1, max_length=63)]
EnvKey = Annotated[str, AfterValidator(_env_key)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Moment = Annotated[AwareDatetime, AfterValidator(in_utc), Field(strict=False)]
"""A time with its zone, from a text; in UTC then."""


def require_clean_document(document: Any) -> None:
    """Refuse, anywhere in free JSON, what PostgreSQL's jsonb cannot hold.

    Raises:
        ValueError: a string with U+0000 or a lone surrogate.
    """
    if isinstance(document, str):
        _clean_text(document)
    elif isinstance(document, dict):
        for key, value in document.items():
            _clean_text(key)
            require_clean_document(value)
    elif isinstance(document, list):
        for value in document:
            require_clean_document(value)
