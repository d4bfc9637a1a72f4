"""Work in small batches, each a transaction of its own, until nothing is left."""

from collections import Counter
from collections.abc import Callable


def in_batches(delete_once: Callable[[], dict[str, int]], batch: int, most_batches: int) -> dict[str, int]:
    """Repeat ``delete_once`` while it finds a full batch of any kind, at most so often. Return the sums."""
    deleted: Counter[str] = Counter()
    for _ in range(most_batches):
        found = delete_once()
        deleted.update(found)
        if all(number < batch for number in found.values()):
            break
    return dict(deleted)
