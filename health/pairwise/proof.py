"""Proofs about a host from groups' all-gathers, where racks are unknown and only the order of the hosts is known."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

Host = str
Group = tuple[Host, ...]
PROOFS: Final = 2
"""Number of failed groups without another suspect, or of successive silent rounds, after which a host is named."""
_WIDE: Final = 4


@dataclass(frozen=True, slots=True)
class Meeting:
    """A group as it is judged. ``fault`` None: it passed, unless ``is_open``: then it shows nothing about its hosts."""

    number: int
    hosts: Group
    rate: float | None
    fault: str | None
    is_open: bool = False

    @property
    def is_slow(self) -> bool:
        return self.fault is not None and self.rate is not None


@dataclass(frozen=True, slots=True)
class Order:
    """The place of each host in the order, and the distance from which on two hosts are in two racks."""

    place: Mapping[Host, int]
    wide: int

    @classmethod
    def of(cls, hosts: Sequence[Host]) -> Self:
        return cls({host: place for place, host in enumerate(hosts)}, max(_WIDE, len(hosts) // 3))

    def ends(self, group: Sequence[Host]) -> tuple[int, int]:
        places = [self.place[host] for host in group]
        return min(places), max(places)

    def is_wide(self, group: Sequence[Host]) -> bool:
        first, last = self.ends(group)
        return last - first >= self.wide

    def is_as_wide(self, group: Sequence[Host], other: Sequence[Host]) -> bool:
        """Return whether ``group`` crosses racks if ``other`` does."""
        (first, last), (its_first, its_last) = self.ends(group), self.ends(other)
        return self.is_wide(group) or (first <= its_first and its_last <= last)


@dataclass(frozen=True, slots=True)
class Known:
    """Facts from the rounds. ``silent``: the rounds in which a host was silent since its last answer."""

    order: Order
    slow_fraction: float
    meetings: Sequence[Meeting]
    cleared: set[Host]
    silent: Mapping[Host, Sequence[int]]


def cleared_by(meetings: Iterable[Meeting]) -> set[Host]:
    """Return the hosts of the groups that passed."""
    return {host for each in meetings if each.fault is None and not each.is_open for host in each.hosts}


def proofs_of(host: Host, known: Known) -> list[Meeting]:
    """Return the failed groups in which no other host is to blame; the same group again is no second proof."""
    found: dict[frozenset[Host], Meeting] = {}
    for meeting in known.meetings:
        others = frozenset(meeting.hosts) - {host}
        if host not in meeting.hosts or meeting.fault is None or not others <= known.cleared:
            continue
        if all(did_better(other, meeting, known) for other in others):
            found.setdefault(others, meeting)
    return list(found.values())


def did_better(host: Host, meeting: Meeting, known: Known) -> bool:
    """Return whether ``host`` was faster in a group as wide: then neither it nor a link between racks is to blame."""
    if meeting.rate is None:
        return True
    enough = meeting.rate / known.slow_fraction
    return any(
        each.rate is not None and each.rate > enough and known.order.is_as_wide(each.hosts, meeting.hosts)
        for each in known.meetings
        if host in each.hosts
    )


def paths_of(known: Known) -> set[Group]:
    """Return pairs of cleared hosts whose last meeting failed, or was slow though both hosts have done better."""
    last = {tuple(sorted(each.hosts)): each for each in known.meetings if known.cleared.issuperset(each.hosts)}
    return {
        pair
        for pair, meeting in last.items()
        if len(pair) == 2 and meeting.fault is not None and all(did_better(host, meeting, known) for host in pair)
    }
