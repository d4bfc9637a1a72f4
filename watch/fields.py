"""The fields of a JSON document, read strictly: each error names the field, its fault and the accepted values."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

MAX_TEXT: Final = 4096
MAX_INTEGERS: Final = 65_536
MAX_READINGS: Final = 4096
_MAX_INT: Final = (1 << 63) - 1
_Word = TypeVar("_Word", bound=StrEnum)
_T = TypeVar("_T")


class FieldError(ValueError):
    """A document that does not hold what it should: the text names the field, the fault, and what is accepted."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object, each read as one type. ``at``: the path to the object, for errors."""

    document: Any
    at: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.document, dict):
            raise FieldError(f"{self.at or 'the document'}: must be an object, not {_kind(self.document)}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise self._fault(name, f"must be text of at most {MAX_TEXT} characters", value)
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if not _is_count(value):
            raise self._fault(name, "must be a whole number from 0", value)
        return int(value)

    def number(self, name: str, default: float | None) -> float | None:
        value = self._mapping().get(name, default)
        if value is None:
            return default
        if not _is_number(value) or value < 0:
            raise self._fault(name, "must be a finite number from 0, or null", value)
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._mapping().get(name, default)
        if not isinstance(value, bool):
            raise self._fault(name, "must be true or false", value)
        return value

    def word(self, name: str, words: type[_Word], default: _Word | None = None) -> _Word:
        value = self._value(name, default)
        if not isinstance(value, str) or value not in set(words):
            raise self._fault(name, f"must be one of {', '.join(words)}", value)
        return words(value)

    def integers(self, name: str) -> tuple[int, ...]:
        values = self._list(name, MAX_INTEGERS)
        if not all(_is_count(each) for each in values):
            raise FieldError(f"{self._path(name)}: must be a list of whole numbers from 0")
        return tuple(values)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        values = self._list(name, most)
        if not all(isinstance(each, str) for each in values):
            raise FieldError(f"{self._path(name)}: must be a list of texts")
        return tuple(each[:MAX_TEXT] for each in values)

    def numbers(self, name: str) -> Mapping[str, float]:
        value = self._mapping().get(name, {})
        if not isinstance(value, dict) or len(value) > MAX_READINGS or not all(map(_is_number, value.values())):
            raise self._fault(name, f"must be an object of at most {MAX_READINGS} finite numbers", value)
        return {str(key): float(each) for key, each in value.items()}

    def each(self, name: str, read: Callable[["Fields"], _T], most: int) -> tuple[_T, ...]:
        values = self._list(name, most)
        return tuple(read(Fields(value, f"{self._path(name)}[{index}]")) for index, value in enumerate(values))

    def _list(self, name: str, most: int) -> list[Any]:
        value = self._mapping().get(name, [])
        if not isinstance(value, list):
            raise self._fault(name, "must be a list", value)
        if len(value) > most:
            raise FieldError(f"{self._path(name)}: has {len(value)} items; at most {most} are accepted")
        return value

    def _value(self, name: str, default: object) -> Any:
        value = self._mapping().get(name, default)
        if value is None:
            raise FieldError(f"{self._path(name)}: is missing")
        return value

    def _mapping(self) -> Mapping[str, Any]:
        mapping: Mapping[str, Any] = self.document
        return mapping

    def _path(self, name: str) -> str:
        return f"{self.at}.{name}" if self.at else name

    def _fault(self, name: str, rule: str, value: object) -> FieldError:
        return FieldError(f"{self._path(name)}: {rule}, not {_kind(value)}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INT


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _MAX_INT if isinstance(value, int) else math.isfinite(value)


def _kind(value: object) -> str:
    if isinstance(value, str):
        return f"{value[:40]!r}"
    if isinstance(value, bool | int | float) or value is None:
        return json.dumps(value)
    return {"dict": "an object", "list": "a list"}.get(type(value).__name__, type(value).__name__)
