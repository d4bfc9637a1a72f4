"""Pages of a list that is never shown whole: an opaque, signed place to continue from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from api.cursors import make_cursor, read_cursor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page. ``older``: the address of the next page; None on the last."""

    items: Sequence[T]
    older: str | None


def place_in(secret_key: bytes, filters: Mapping[str, Any], cursor: str | None, *, length: int) -> list[str] | None:
    """Return the cursor's place. Raises ``InvalidCursorError``: not of this server, or of other filters."""
    return None if cursor is None else list(read_cursor(secret_key, dict(filters), cursor, length=length))


def page_of(
    secret_key: bytes,
    filters: Mapping[str, Any],
    found: Sequence[T],
    *,
    size: int,
    path: str,
    place: Callable[[T], list[str]],
) -> Page[T]:
    """Return a page of ``size``; ``found`` holds one more where there is another."""
    shown = found[:size]
    if len(found) <= size:
        return Page(shown, None)
    cursor = make_cursor(secret_key, dict(filters), place(shown[-1]))
    return Page(shown, f"{path}?{urlencode([*_given(filters), ('cursor', cursor)])}")


def _given(filters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the filters that are given; 0 and the empty text are, since the cursor is of them too."""
    found: list[tuple[str, str]] = []
    for name, value in filters.items():
        values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        found += [(name, str(one)) for one in values]
    return found
