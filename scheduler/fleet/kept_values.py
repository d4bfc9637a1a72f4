"""Values that depend on a state and a key, computed once for each key while the state is the same."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class KeptValues(Generic[Value]):
    """The values of one stamp: a change of the stamp forgets them."""

    __slots__ = ("_stamp", "_values")

    def __init__(self) -> None:
        self._stamp: Hashable = None
        self._values: dict[Hashable, Value] = {}

    def get(self, stamp: Hashable, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of the key for this stamp. ``make`` computes it."""
        if stamp != self._stamp:
            self._stamp = stamp
            self._values.clear()
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = make()
        return found
