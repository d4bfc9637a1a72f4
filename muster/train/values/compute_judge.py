"""Judgement of micro-batches that several ranks computed: which rank has computed otherwise than the others.

Each micro-batch is of one rank, its owner. The owner computes it, and so does the rank that is ``shift`` places on in
the circle. Three ranks, of which rank 1 computes wrong::

    owner             0        1        2
    shift 1    by     0  1     1  2     2  0
               gives  a  A     B  b     c  c      unlike: ranks 0 and 1, ranks 1 and 2; rank 1 is in both
    shift 2    by        2        0        1      the third result of each micro-batch
               gives     a        b        C      rank 1 is alone in each

A rank is named if it is alone with its result among three of each unlike micro-batch, or if no other rank is common to
all unlike ones. With two ranks each micro-batch has two results, so the pair is reported and none is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Computed = tuple[int, int, int]
"""Owner of a micro-batch, the rank that computed it, and the digest of what it got."""


@dataclass(frozen=True)
class Unlike:
    """Results that differ. ``ranks``: the ranks that computed otherwise; empty: it is undecided.

    ``group``: the ranks among which it is. ``owner``: the first micro-batch with several results.
    """

    ranks: tuple[int, ...]
    group: tuple[int, ...]
    owner: int


def judge(computed: Iterable[Computed]) -> Unlike | None:
    """Return what the results show; None if they are alike."""
    by_owner: dict[int, dict[int, int]] = {}
    for owner, rank, digest in computed:
        by_owner.setdefault(owner, {})[rank] = digest
    unlike = {owner: results for owner, results in by_owner.items() if len(set(results.values())) > 1}
    if not unlike:
        return None
    alone = [_in_the_minority(results) for results in unlike.values()]
    if all(alone):
        ranks = set().union(*alone)
    else:
        possible = [found or set(results) for found, results in zip(alone, unlike.values(), strict=True)]
        common = set.intersection(*possible)
        ranks = common if len(common) == 1 else set()
    group = {rank for results in (by_owner if ranks else unlike).values() for rank in results}
    return Unlike(tuple(sorted(ranks)), tuple(sorted(group)), min(unlike))


def _in_the_minority(results: Mapping[int, int]) -> set[int]:
    """Return the ranks without the result that more than half have; empty: none has more than half."""
    digest, most = Counter(results.values()).most_common(1)[0]
    return {rank for rank, own in results.items() if own != digest} if 2 * most > len(results) else set()
