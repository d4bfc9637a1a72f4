"""Ranks in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMED = 4


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, or ``ranks 0, 1``; of many, the first few and the number of the rest."""
    named = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = f" and {len(ranks) - _MOST_NAMED:,} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {named}{more}"
