"""The parts of documents: values of an enumeration, times, pages. This module does not load pydantic itself."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict


@dataclass(frozen=True, slots=True)
class OneOf:
    """A text that is one value of ``enumeration``. OpenAPI lists the values."""

    enumeration: type[StrEnum]

    def __get_pydantic_core_schema__(self, _source: Any, handler: Any) -> Any:
        return handler.generate_schema(self.enumeration)


class _DateTime:
    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(core_schema), "format": "date-time"}


Moment = Annotated[str, _DateTime()]
"""RFC 3339 in UTC, with ``Z``."""

Json = dict[str, Any]
"""An object whose members depend on its subject."""


class Page(TypedDict):
    """``next_cursor`` is null on the last page."""

    next_cursor: str | None


class Stretch(TypedDict):
    """A stretch of a sequence.

    ``next_after``: the position after which the next one begins; unchanged if nothing is new.
    """

    next_after: int


class Consequence(TypedDict):
    """A record of a change for programs: an event (``kind`` and subject), or a message (``topic`` and key)."""

    type: str
    payload: Json
    kind: NotRequired[str]
    subject_type: NotRequired[str]
    subject_id: NotRequired[str]
    topic: NotRequired[str]
    key: NotRequired[str]
