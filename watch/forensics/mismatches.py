"""Collectives of one number that differ between ranks, and which rank left the order that the others keep.

A rank that skips a collective enters the next one under the skipped one's number. The history shows it: the others, and
the rank itself before, entered ``all_reduce`` between two ``broadcast``::

    ranks 0, 2, 3:  24 broadcast   25 all_reduce
    rank 1:         24 broadcast   25 broadcast     no rank has ever entered broadcast after broadcast: 25 is skipped
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from watch.forensics.sequences import Joined, key_of
from watch.reports import COMPLETED, WATCHDOG, Collective

_OF_ANY_SIZE: Final = ("all_to_all", "alltoall", "scatter", "gather", "coalesced", "object", "send", "recv")
"""Operations whose input may have another size on each rank; reduce_scatter and all_gather_into_tensor have one."""
_OF_ONE_SIZE: Final = ("reduce_scatter", "all_gather_into_tensor", "all_gather_base")
_Kind = tuple[str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A number at which ranks entered different collectives.

    ``culprits``: the ranks that left the order. ``skipped``: the operation that they left out; empty for another
    operation, size or type. ``stated``: each collective with the ranks that entered it, most ranks first.
    """

    group: str
    sequence: int
    culprits: tuple[int, ...]
    skipped: str
    stated: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def place(self) -> str:
        """Return the number as text."""
        return f"number {self.sequence} of group {self.group or '0'}"

    @property
    def collectives(self) -> str:
        """Return what was entered under the number, as text."""
        return " and ".join(f"{operation} on {_ranks(ranks)}" for operation, ranks in self.stated)


def first_mismatch(joined: Joined) -> Mismatch | None:
    """Return the first number, of any group, that ranks entered differently and did not all complete."""
    for group in sorted(joined.of):
        entries = joined.of[group]
        shared = Counter(number for of_rank in entries.values() for number in of_rank)
        for number in sorted(number for number, count in shared.items() if count > 1):
            at = _comparable({rank: of_rank[number] for rank, of_rank in sorted(entries.items()) if number in of_rank})
            is_stuck = any(entry.state != COMPLETED for entry in at.values())
            if is_stuck and len({_kind(entry) for entry in at.values()}) > 1:
                return _mismatch(joined, group, number, at)
    return None


def _comparable(at: Mapping[int, Collective]) -> dict[int, Collective]:
    """Return the entries by the parts that all of them state: a line of the watchdog states the operation alone."""
    stated = {rank: entry for rank, entry in at.items() if entry.operation}
    if all(entry.source != WATCHDOG for entry in stated.values()):
        return stated
    return {rank: replace(entry, sizes=(), dtype="") for rank, entry in stated.items()}


def order_breakers(joined: Joined, among: Iterable[int]) -> tuple[tuple[int, ...], str]:
    """Return the ranks whose newest collective came after one that it never followed before, and what they skipped.

    This needs a rank's own history: at least one earlier step.
    """
    broken = [rank for rank in sorted(among) if _breaks_order(joined.in_order.get(rank, ()))]
    skipped = next((each for rank in broken if (each := _left_out(joined.in_order[rank], joined, rank))), "")
    return tuple(broken), skipped


def _mismatch(joined: Joined, group: str, number: int, at: Mapping[int, Collective]) -> Mismatch:
    ranks_of: dict[_Kind, list[int]] = {}
    for rank, entry in at.items():
        ranks_of.setdefault(_kind(entry), []).append(rank)
    ordered = sorted(ranks_of.items(), key=lambda item: (-len(item[1]), item[1]))
    broken = [rank for rank in at if _breaks_order(_up_to(joined, group, rank, number))]
    minority = [rank for _, ranks in ordered[1:] for rank in ranks]
    is_told_apart = 0 < len(broken) < len(at) and (len(ordered[0][1]) == len(minority) or set(broken) <= set(minority))
    culprits = broken if is_told_apart else minority
    if not is_told_apart and len(ordered) == len(at):  # each rank entered another one: none is the odd one
        culprits = list(at)
    culprit = culprits[0]
    skipped = _left_out(_up_to(joined, group, culprit, number), joined, culprit)
    stated = tuple((_words(at[ranks[0]]), tuple(ranks)) for _, ranks in ordered)
    return Mismatch(at[culprit].group, number, tuple(culprits), skipped, stated)


def _up_to(joined: Joined, group: str, rank: int, number: int) -> tuple[Collective, ...]:
    """Return the rank's collectives in the order in which it entered them, up to the one in question."""
    entries = joined.in_order[rank]
    end = next((n for n, each in enumerate(entries) if key_of(each) == group and each.sequence == number), len(entries))
    return entries[: end + 1]


def _step_of(entry: Collective) -> tuple[str, _Kind]:
    return key_of(entry), (entry.operation, entry.sizes, entry.dtype)


def _breaks_order(entries: Sequence[Collective]) -> bool:
    """Return whether the last collective follows one that had other successors before, and never this one."""
    steps = [_step_of(entry) for entry in entries]
    if len(steps) < 2:
        return False
    before = list(pairwise(steps[:-1]))
    followers = {after for first, after in before if first == steps[-2]}
    return bool(followers) and steps[-1] not in followers


def _left_out(entries: Sequence[Collective], joined: Joined, rank: int) -> str:
    """Return the operation between the last two collectives that every earlier step had; empty if there is none."""
    steps = [_step_of(entry) for entry in entries]
    if len(steps) < 2:
        return ""
    others = [each for other, each in joined.in_order.items() if other != rank]
    histories = [steps[:-1], *([_step_of(entry) for entry in each] for each in others)]
    pairs = {pair for history in histories for pair in pairwise(history)}
    between = [middle for first, middle in pairs if first == steps[-2] and (middle, steps[-1]) in pairs]
    return min((operation for _, (operation, _, _) in between), default="")


def _kind(entry: Collective) -> _Kind:
    """Return the parts of a collective that all ranks must have in common."""
    operation = entry.operation
    has_any_size = any(word in operation for word in _OF_ANY_SIZE) and not any(
        word in operation for word in _OF_ONE_SIZE
    )
    return operation, () if has_any_size else entry.sizes, entry.dtype


def _words(entry: Collective) -> str:
    size = "x".join(str(each) for each in entry.sizes)
    return " ".join(part for part in (entry.operation, f"[{size}]" if size else "", entry.dtype) if part)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(str(each) for each in ranks)}"
