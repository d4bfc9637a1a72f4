"""Counts by cell of a fleet, updated from the cells that changed, at the next read."""

from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_BEHIND: Final = 1_000
"""Number of changes without a read after which a count is computed again."""
MOST_NOTES: Final = 4
"""Most changes of a cell, one of each GPU, with which an update is faster than a new count."""
MAX_KEPT: Final = 64
"""Most counts that are kept, about 0.2 MB each at 100,000 GPUs; then the oldest is dropped."""


class Kept(Protocol):
    """A count by cells that is updated from the cells that changed."""

    def follow(self, cells: Ints) -> None:
        """Update the count. ``cells``: distinct cells that changed."""


SomeKept = TypeVar("SomeKept", bound=Kept)


class _Entry:
    """One kept count, of the kind that its key states. ``num_seen``: how many recorded changes it contains."""

    __slots__ = ("kept", "num_seen")

    def __init__(self, kept: Any, num_seen: int) -> None:
        self.kept, self.num_seen = kept, num_seen


class Tallies:
    """The kept counts of one fleet state. ``touch`` records which cells have changed."""

    __slots__ = ("_changed", "_entries", "_is_touched", "_num_cells", "_touched")

    def __init__(self, num_cells: int) -> None:
        self._num_cells = num_cells
        self._entries: dict[Hashable, _Entry] = {}
        self._touched: list[Ints] = []
        self._is_touched: Flags = np.zeros(num_cells, dtype=np.bool_)  # for ``_changed_since`` alone
        self._changed: tuple[tuple[int, int], Ints] | None = None

    def touch(self, cells: Ints) -> None:
        if len(self._touched) == MAX_BEHIND:
            self._entries.clear()
            self._touched.clear()
            self._changed = None
        if self._entries:
            self._touched.append(cells)

    def get(self, key: Hashable, make: Callable[[], SomeKept]) -> SomeKept:
        """Return the count of this key, up to date. ``make`` computes it; equal keys are always of one kind."""
        entry, num_touched = self._entries.get(key), len(self._touched)
        if entry is None:
            if len(self._entries) == MAX_KEPT:
                del self._entries[next(iter(self._entries))]
            entry = self._entries[key] = _Entry(make(), num_touched)
        elif entry.num_seen < num_touched:
            if sum(map(len, self._touched[entry.num_seen :])) > MOST_NOTES * self._num_cells:
                entry.kept = make()
            else:
                entry.kept.follow(self._changed_since(entry.num_seen))
            entry.num_seen = num_touched
        kept: SomeKept = entry.kept
        return kept

    def _changed_since(self, number: int) -> Ints:
        """Return the cells of every change from this one on, distinct and in order."""
        asked = number, len(self._touched)
        if self._changed is None or self._changed[0] != asked:
            for touched in self._touched[number:]:
                self._is_touched[touched] = True
            changed = self._is_touched.nonzero()[0]
            self._is_touched[changed] = False
            self._changed = asked, changed
        return self._changed[1]
