"""Judgement of copies that differ: which rank has the false one, or that it is undecided.

Each rank states a digest of each of its copies. Four ranks have copies of one tensor::

    rank       0     1     2     3
    digest     a     a     b     a        more than half have a: rank 2 is named
    digest     a     b     a     b        no digest has more than half: undecided
    digest     a     b     c     d        undecided

With two ranks no digest has more than half. Only a copy that does not change, such as a table, names its rank there:
the rank whose digest differs from the one at the last agreement.

A difference is a fault only after the copies have agreed often enough, since some may legally differ: statistics of a
batch norm, a state that an optimizer shards. A tensor that differs before that is left out from then on. A *sure* one,
which DDP keeps alike, needs one agreement; others two between which it changed, or three; a buffer needs three.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.train.parallel.naming import ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from muster.train.values.copies import Group

ENOUGH = 3
"""Agreements after which copies count as such, though nothing declares them."""
Table = dict[int, int]
"""One rank's digests by the digest of the tensor's name."""


@dataclass
class History:
    """Agreements on one tensor. ``digest``: at the last one; ``has_changed``: between two of them."""

    digest: int = 0
    num_agreed: int = 0
    has_changed: bool = False

    def note_agreed(self, digest: int) -> None:
        self.has_changed |= self.num_agreed > 0 and digest != self.digest
        self.digest, self.num_agreed = digest, self.num_agreed + 1

    def is_known(self, *, is_sure: bool, is_buffer: bool) -> bool:
        """Return whether a difference is a fault."""
        if is_sure or (self.has_changed and not is_buffer and self.num_agreed > 1):
            return self.num_agreed > 0
        return self.num_agreed >= ENOUGH


@dataclass(frozen=True)
class Unlike:
    """Copies of one tensor that differ. ``culprits``: the ranks with the false copy; empty: it is undecided."""

    name: int
    group: Group
    culprits: tuple[int, ...]


@dataclass(frozen=True)
class ReplicaFault:
    """Copies that have drifted apart. ``ranks``: the ranks with the false copy; empty: it is undecided.

    ``tensor``: the first that differs; ``num_tensors``: how many differ. ``step``: of the check; ``since``: of the
    last check at which all copies agreed, so the fault is younger. ``is_of_buffers``: no copy differs that the program
    may not change on one rank alone. ``is_of_compute``: not copies but results of one micro-batch differ, and
    ``tensor`` is the first of them (``compute_check``).
    """

    ranks: tuple[int, ...]
    group: Group
    tensor: str
    num_tensors: int
    step: int
    since: int
    is_of_buffers: bool = False
    is_of_compute: bool = False

    @property
    def kind(self) -> str:
        """``corruption`` of named ranks, or ``divergence`` of ranks among which it is undecided."""
        return "corruption" if self.ranks else "divergence"

    def __str__(self) -> str:
        more = f" and {self.num_tensors - 1:,} more" if self.num_tensors > 1 else ""
        if self.is_of_compute:
            return f"compute differs at step {self.step}: {self._of_compute(more)}; it agreed at step {self.since}"
        if self.ranks:
            unlike = f"{ranks_in_words(self.ranks)} of {len(self.group)} ranks with copies"
            words = f"the copy of {self.tensor}{more} is false on {unlike}"
        else:
            words = f"the copies of {self.tensor}{more} differ on {ranks_in_words(self.group)}; undecided which is true"
        return f"replicas differ at step {self.step}: {words}; they agreed at step {self.since}"

    def _of_compute(self, more: str) -> str:
        what = f"of one micro-batch, {self.tensor}{more}"
        if self.ranks:
            return f"{what} is false on {ranks_in_words(self.ranks)} of {len(self.group)} ranks"
        return f"{what} differ on {ranks_in_words(self.group)}; undecided which is true"


@dataclass
class Judged:
    """Result of one comparison. ``faults``: in the order of the tensors. ``left_out``: names that are no copies."""

    faults: list[Unlike] = field(default_factory=list)
    left_out: set[int] = field(default_factory=set)


def unlike(tables: Sequence[Table], groups: Mapping[int, Group]) -> list[tuple[int, dict[int, int]]]:
    """Return each tensor of which copies differ, with the digests by rank. ``groups``: of this rank's tensors."""
    found = []
    for name, group in groups.items():
        digests = {rank: tables[rank].get(name, -1) for rank in group}
        if len(set(digests.values())) > 1:
            found.append((name, digests))
    return found


def culprits(digests: Mapping[int, int], agreed: History) -> tuple[int, ...]:
    """Return the ranks whose copy is false; empty: it is undecided."""
    counts = Counter(digests.values())
    digest, most = counts.most_common(1)[0]
    if 2 * most > len(digests):
        return _others(digests, digest)
    if agreed.num_agreed >= ENOUGH and not agreed.has_changed and agreed.digest in counts:
        return _others(digests, agreed.digest)
    return ()


def _others(digests: Mapping[int, int], digest: int) -> tuple[int, ...]:
    return tuple(rank for rank, own in digests.items() if own != digest)


def named(faults: Iterable[Unlike]) -> tuple[int, ...]:
    """Return the ranks that any of the faults names, in order."""
    return tuple(sorted({rank for fault in faults for rank in fault.culprits}))
