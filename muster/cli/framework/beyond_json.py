"""Values that YAML can hold and JSON cannot, named by their place: dates, binary, sets."""

from collections.abc import Iterator
from datetime import date


def unsaid_by_json(value: object, place: str = "") -> Iterator[str]:
    """Yield each value that JSON cannot hold: its place, its kind, and how to write it. No value contains itself."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key is not None and not isinstance(key, str | int | float):
                yield f"{place or 'the whole'}: a key is {_kind_of(key)}"
            else:
                yield from unsaid_by_json(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from unsaid_by_json(inner, f"{place}.{number}")
    elif value is not None and not isinstance(value, str | int | float):
        yield f"{place or 'the whole'}: is {_kind_of(value)}"


def _kind_of(value: object) -> str:
    if isinstance(value, date):
        return f"a date: write it in quotes, as text, '{value}'"
    if isinstance(value, bytes):
        return "binary: write text instead"
    return (
        "a set: write a list instead" if isinstance(value, set) else "no text, number, list or mapping, as is accepted"
    )
