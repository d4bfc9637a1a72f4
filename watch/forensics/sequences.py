"""The sequences of collectives of all ranks, joined by group and number: which rank waits for which.

A rank waits in the first collective that is not completed. It waits for each member of that group that has not entered
the same number::

    group 0        rank 0: … 80 81 (waits)
                   rank 1: … 80              it has not entered 81: ranks 0 and 2 wait for it
                   rank 2: … 80 81 (waits)

With several groups these waits form a graph. A rank for which others wait and which waits for none is where the hang
begins: of groups inside groups that is the innermost one. Where each rank waits for another, the ranks entered
collectives in different orders.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from watch.reports import COMPLETED, FLIGHT_RECORDER, NCCL, WATCHDOG, Collective, RankReport

_ENDS: Final = re.compile(r"(\d{1,7})(?:->|<-)(\d{1,7})")
_WORLD: Final = frozenset({"", "0", "default_pg"})
"""Names of the group of all ranks."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The collective in which ``ranks`` wait, and the members ``missing`` that have not entered it."""

    group: str
    sequence: int
    operation: str
    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    description: str = ""
    key: str = ""
    """The group's key in ``Joined.of``."""

    @property
    def words(self) -> str:
        """Return the collective as text, such as ``all_reduce, number 81 of group 0``."""
        name = f"{self.group} ({self.description})" if self.description else self.group or "0"
        return f"{self.operation or 'a collective'}, number {self.sequence} of group {name}"


@dataclass(frozen=True, slots=True)
class Transfer:
    """The newest send or receive of a rank, not completed, and the rank at its other end."""

    entry: Collective
    peer: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The entries of all ranks. ``of``: by group, then rank, then number, without sends and receives.

    ``transfers``: by rank, of the ranks that wait in a send or a receive.
    """

    of: Mapping[str, Mapping[int, Mapping[int, Collective]]]
    members: Mapping[str, frozenset[int]]
    in_order: Mapping[int, tuple[Collective, ...]]
    transfers: Mapping[int, "Transfer"] = field(default_factory=dict)
    _sources: dict[str, frozenset[str]] = field(default_factory=dict)

    def last(self, group: str, rank: int) -> int | None:
        """Return the newest number that the rank has entered in the group; None if no entry of it is known."""
        entries = self.of[group].get(rank)
        return max(entries) if entries else None

    def has_dump_of(self, group: str, rank: int) -> bool:
        """Return whether the rank's entries are known from the same source, so that it has none of this group.

        A line of the watchdog is about one group, and says nothing about the others.
        """
        sources = self._sources.get(group)
        if sources is None:
            found = {each.source for of_rank in self.of[group].values() for each in of_rank.values()} - {WATCHDOG}
            sources = self._sources[group] = frozenset(found)
        return any(each.source in sources for each in self.in_order.get(rank, ()))

    def stuck_at(self, group: str, rank: int) -> int | None:
        """Return the first number that the rank has entered and not completed; None if it waits in none."""
        entries = self.of[group].get(rank, {})
        return min((number for number, entry in entries.items() if entry.state != COMPLETED), default=None)


def join(ranks: Iterable[RankReport]) -> Joined:
    """Return the sequences of all ranks by group. Without flags of completion only the newest entry may be stuck.

    A group may have two backends, each with a count of its own. Where NCCL's is known of a rank, only that one counts.
    """
    ranks = tuple(ranks)
    of_nccl = {each.group for rank in ranks for each in rank.collectives if each.source == NCCL}
    found: dict[str, dict[int, dict[int, Collective]]] = {}
    members: dict[str, set[int]] = {}
    in_order: dict[int, tuple[Collective, ...]] = {}
    everyone: set[int] = set()
    transfers: dict[int, Transfer] = {}
    for rank in ranks:
        everyone.add(rank.rank)
        entered = [each for each in rank.collectives if each.source != FLIGHT_RECORDER or each.group not in of_nccl]
        if entered and (transfer := _transfer(rank.rank, entered[-1])) is not None:
            transfers[rank.rank] = transfer
        entries = tuple(each for each in entered if not each.is_p2p)
        in_order[rank.rank] = entries
        for group, of_group in _by_group(entries).items():
            found.setdefault(group, {})[rank.rank] = of_group
            members.setdefault(group, set()).add(rank.rank)
            members[group].update(*(each.ranks for each in of_group.values()))
    for group in members.keys() & _WORLD:
        members[group] |= everyone
    return Joined(found, {group: frozenset(each) for group, each in members.items()}, in_order, transfers)


def _transfer(rank: int, newest: Collective) -> Transfer | None:
    """Return the send or receive that is a rank's newest entry: ``send 0->1``, or ``recv 1<-0``."""
    found = _ENDS.search(newest.operation) if newest.is_p2p and newest.state != COMPLETED else None
    if found is None:
        return None
    ends = [_global(int(each), newest.ranks) for each in found.groups()]
    peers = [each for each in ends if each != rank]
    return Transfer(newest, peers[0]) if len(peers) == 1 else None


def _global(number: int, ranks: tuple[int, ...]) -> int:
    """Return the rank that has ``number`` in its group."""
    return ranks[number] if number < len(ranks) else number


def _by_group(entries: Sequence[Collective]) -> Mapping[str, dict[int, Collective]]:
    found: dict[str, dict[int, Collective]] = {}
    for entry in entries:
        found.setdefault(key_of(entry), {})[entry.sequence] = entry
    for of_group in found.values():
        newest = max(of_group)
        for number, entry in of_group.items():
            if number != newest and not entry.state:
                of_group[number] = replace(entry, state=COMPLETED)
    return found


def key_of(entry: Collective) -> str:
    """Return the group's key: the runtime's own sequence and the flight recorder's count apart."""
    return entry.group if entry.source != "muster" else f"muster:{entry.group}"


@dataclass(slots=True)
class WaitGraph:
    """``waits``: the stuck collectives. ``edges``: from a rank to the ranks that it waits for."""

    waits: list[Wait] = field(default_factory=list)
    edges: dict[int, set[int]] = field(default_factory=dict)

    def holders(self) -> tuple[int, ...]:
        """Return the ranks that others wait for and that wait for none; in a circle of waits, the circle's ranks."""
        awaited = set().union(*self.edges.values()) if self.edges else set()
        free = awaited - self.edges.keys()
        return tuple(sorted(free)) if free else self._circle()

    @property
    def is_circle(self) -> bool:
        """Return whether each rank that is waited for waits for another one itself."""
        return bool(self.edges) and not set().union(*self.edges.values()) - self.edges.keys()

    def _circle(self) -> tuple[int, ...]:
        if not self.edges:
            return ()
        at = min(self.edges)
        path: list[int] = []
        while at not in path:
            path.append(at)
            at = min(self.edges[at])
        return tuple(sorted(path[path.index(at) :]))


def wait_graph(joined: Joined, may_lag: Callable[[int], bool]) -> WaitGraph:
    """Return which rank waits for which. ``may_lag``: whether a rank without any dump may be missing in a group."""
    graph = WaitGraph()
    for group in sorted(joined.of):
        at: dict[int, list[int]] = {}
        for rank in joined.of[group]:
            if (number := joined.stuck_at(group, rank)) is not None:
                at.setdefault(number, []).append(rank)
        for number, ranks in sorted(at.items()):
            missing = _missing(joined, group, number, may_lag)
            entry = joined.of[group][ranks[0]][number]
            graph.waits.append(
                Wait(entry.group, number, entry.operation, tuple(sorted(ranks)), missing, entry.description, group)
            )
            for rank in ranks if missing else ():
                graph.edges.setdefault(rank, set()).update(set(missing) - {rank})
    for rank, transfer in sorted(joined.transfers.items()):
        other = joined.transfers.get(transfer.peer)
        if other is None or other.peer != rank:
            entry, peer = transfer.entry, transfer.peer
            graph.waits.append(Wait(entry.group, entry.sequence, entry.operation, (rank,), (peer,), entry.description))
            graph.edges.setdefault(rank, set()).add(peer)
    graph.edges = {rank: others for rank, others in graph.edges.items() if others}
    return graph


def _missing(joined: Joined, group: str, number: int, may_lag: Callable[[int], bool]) -> tuple[int, ...]:
    missing = []
    for rank in sorted(joined.members[group]):
        last = joined.last(group, rank)
        if last < number if last is not None else joined.has_dump_of(group, rank) or may_lag(rank):
            missing.append(rank)
    return tuple(missing)
