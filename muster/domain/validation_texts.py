"""The fault of a field as text that names the accepted values: bounds, a fraction, the nearest known key."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Place = tuple[int | str, ...]
KEYS_NAMED: Final = 32
_NO_NUMBER: Final = frozenset({"float_parsing", "float_type", "int_parsing", "int_type", "int_from_float"})
_WHOLE: Final = frozenset({"int_parsing", "int_type", "int_from_float"})
_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
}

_LENGTHS: Final[Mapping[str, tuple[str, str]]] = {
    "too_short": ("min_length", "at least"),
    "too_long": ("max_length", "at most"),
    "string_too_short": ("min_length", "at least"),
    "string_too_long": ("max_length", "at most"),
}
_TYPES: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "string_type": "must be text: write it in quotes",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "tuple_type": "must be a list",
}
_CHOICES: Final = frozenset({"literal_error", "enum"})
_TEXT: Final = "Value"
"""Name of a text that one of our own rules has read before it is measured."""


def text_of(model: type[BaseModel], place: Place, kind: str, message: str, context: Mapping[str, Any]) -> str:
    """``kind``, ``message``, ``context``: Pydantic's own, whose words stay where ours know nothing better."""
    if kind == "extra_forbidden":
        return _unknown_key(_keys_at(model, place[:-1]), str(place[-1]))
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in _LENGTHS:
        return _length_words(kind, context)
    if kind in _CHOICES:
        return f"must be {context['expected']}"
    if kind not in _NO_NUMBER and kind not in _BOUNDS:
        return message.removeprefix("Value error, ")
    if _is_fraction(_bounds_at(model, place)):
        return "must be a fraction from 0 to 1, such as 0.05"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"must be {words} {context[name]:,.12g}"
    return "must be a whole number" if kind in _WHOLE else "must be a number, without a unit or quotes"


def _length_words(kind: str, context: Mapping[str, Any]) -> str:
    name, words = _LENGTHS[kind]
    is_text = kind.startswith("string") or context.get("field_type") == _TEXT
    item = "character" if is_text else "item"
    return f"must have {words} {context[name]:,} {item}{'' if context[name] == 1 else 's'}"


def _unknown_key(known: Sequence[str], key: str) -> str:
    near = get_close_matches(key, known, n=1)
    if near:
        return f"there is no such key; did you mean {near[0]}?"
    if not known or len(known) > KEYS_NAMED:
        return "there is no such key"
    return f"there is no such key; there are {', '.join(known)}"


def _is_fraction(bounds: Mapping[str, float]) -> bool:
    return bounds.get("le") == 1 and 0 in {bounds.get("gt"), bounds.get("ge")}


def _bounds_at(model: type[BaseModel], place: Place) -> dict[str, float]:
    """Return the bounds of the number at ``place``: ``gt``, ``ge``, ``lt`` and ``le``, as far as it has them."""
    found: dict[str, float] = {}
    for note in _notes_at(model, place):
        for part in (note, *getattr(note, "metadata", ())):
            found |= {
                name: value for name in ("gt", "ge", "lt", "le") if (value := getattr(part, name, None)) is not None
            }
    return found


def _notes_at(model: type[BaseModel], place: Place) -> Iterator[Any]:
    holder, name = _type_at(model, place[:-1]), place[-1]
    if isinstance(holder, type) and issubclass(holder, BaseModel):
        field = holder.model_fields.get(str(name))
        yield from () if field is None else field.metadata
    else:
        yield from _annotations_in(holder)


def _annotations_in(kind: Any) -> Iterator[Any]:
    """Yield the annotations within the type arguments of a mapping or list."""
    for part in get_args(kind):
        yield from getattr(part, "__metadata__", ())


def _keys_at(model: type[BaseModel], place: Place) -> tuple[str, ...]:
    holder = _type_at(model, place)
    if not isinstance(holder, type) or not issubclass(holder, BaseModel):
        return ()
    return (*holder.model_fields, *getattr(holder, "OTHER_KEYS", ()))


def _type_at(model: type[BaseModel], place: Place) -> Any:
    """Return the type of the model at ``place``; None where it is unknown, as within a union."""
    kind: Any = model
    for part in place:
        field = _field_of(kind, part)
        kind = None if field is None else _plain(field)
    return kind


def _field_of(kind: Any, part: int | str) -> Any:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field: FieldInfo | None = kind.model_fields.get(str(part))
        return None if field is None else field.annotation
    held = [each for each in get_args(kind) if each is not Ellipsis]
    return held[-1] if get_origin(kind) in {dict, list, tuple} and held else None


def _plain(kind: Any) -> Any:
    """Return the type without its annotations, and without None."""
    while hasattr(kind, "__metadata__"):
        kind = kind.__origin__
    if get_origin(kind) in {Union, UnionType}:
        others = [each for each in get_args(kind) if each is not type(None)]
        return _plain(others[0]) if len(others) == 1 else None
    return kind
