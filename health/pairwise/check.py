"""Pairwise check: the bad hosts of a gang, from all-gathers of small groups, and the groups of the next round.

A group passes when all its hosts work: then each of them is *cleared*. A group that failed, or was slower than the
others of its round, shows only that one of its hosts is bad. So the first round pairs neighbours (with a group of
three, where their number is odd). Each later round pairs every doubted host with a cleared one that it has not failed
with.

A host is named only when it failed in two groups in which all others are cleared, and passed in none: neither one bad
path nor one noisy moment accuses a host. Where no cleared host is free, doubted hosts form new pairs. A silent host is
tried again, and named when it was silent in two rounds on end; its group shows nothing about the other hosts.

*Slow* is under a fraction of the median of the other groups of the same round, never under a fixed number: where most
are equally slow, none is. A link between racks may be slower than one inside, and racks are not known here, only the
order of the hosts. So a slow group puts a host in doubt, and proves something only where each other host of the group
has done better by that fraction in a group at least as *wide*. Such a group spans theirs, or its ends are 4 hosts and a
third of the gang apart, and so in two racks unless a rack holds more than that. Then the link between racks was in the
better group too, and the remaining host is to blame. Idle cleared hosts are paired for that, far apart. A wide group is
compared with wide ones; but where most of these have a host in doubt, an equal rate clears none.

Source of the idea: DLRover's node check (pairs of neighbours, then the fastest with the slowest; slow is over twice the
median time), which cannot distinguish the two hosts of a pair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Self

from health.pairwise.groups import next_groups
from health.pairwise.proof import PROOFS, Group, Host, Known, Meeting, Order, cleared_by, paths_of, proofs_of

_ALIKE_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class PairwiseLimits:
    """Limits of a check. ``slow_fraction``: a rate under that part of the other groups' median is slow."""

    rounds_max: int = 4
    slow_fraction: float = 0.5


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The result of one group's all-gather.

    ``rate_bytes_per_s``: bytes a second that each host received from the others; None where it failed, for the reason
    in ``why``. ``silent``: hosts without any answer; then the result shows nothing about the others.
    """

    hosts: Group
    rate_bytes_per_s: float | None = None
    why: str = ""
    silent: frozenset[Host] = frozenset()


Round = tuple[GroupResult, ...]


@dataclass(frozen=True, slots=True)
class Assessment:
    """Result of all rounds so far. ``bad`` and ``undecided``: host → why.

    ``paths``: two hosts that failed with each other, while each passed with others. ``next_groups``: of the next round,
    disjoint; empty where another would decide nothing, or there have been enough. ``is_speed_compared``: whether there
    was ever a second group to compare a rate with.
    """

    cleared: tuple[Host, ...] = ()
    bad: Mapping[Host, str] = field(default_factory=dict)
    undecided: Mapping[Host, str] = field(default_factory=dict)
    paths: tuple[Group, ...] = ()
    next_groups: tuple[Group, ...] = ()
    is_speed_compared: bool = False


def assess(hosts: Sequence[Host], rounds: Sequence[Round], limits: PairwiseLimits) -> Assessment:
    """Return the result of ``rounds`` for ``hosts``, with the groups of the next round.

    ``hosts``: in the order of the topology, neighbours next to each other.

    Raises:
        ValueError: a host is named twice.
    """
    if len(set(hosts)) != len(hosts):
        raise ValueError("pairwise check: a host is named twice; each must be named once")
    order = Order.of(hosts)
    meetings, is_compared = _judged(rounds, limits, order)
    silent = _silent(rounds)
    cleared = cleared_by(meetings) - silent.keys()
    known = Known(order, limits.slow_fraction, meetings, cleared, silent)
    bad: dict[Host, str] = {}
    for host in hosts:
        proofs = [] if host in cleared else proofs_of(host, known)
        if len(proofs) >= PROOFS:
            bad[host] = "; ".join(_in_words(host, meeting) for meeting in proofs)
        elif len(silent.get(host, ())) >= PROOFS and cleared:
            bad[host] = _silence(silent[host])
    doubted = [host for host in hosts if host not in cleared and host not in bad]
    return Assessment(
        cleared=tuple(host for host in hosts if host in cleared),
        bad=bad,
        undecided={host: _doubt(host, known) for host in doubted},
        paths=tuple(sorted(paths_of(known))),
        next_groups=next_groups(hosts, known, doubted) if len(rounds) < limits.rounds_max else (),
        is_speed_compared=is_compared,
    )


def _judged(rounds: Sequence[Round], limits: PairwiseLimits, order: Order) -> tuple[list[Meeting], bool]:
    """Return every conclusive group, and whether any rate had another to compare with."""
    meetings: list[Meeting] = []
    is_compared = False
    for number, groups in enumerate(rounds, start=1):
        rates = _Rates.of(groups, meetings, order)
        for group in groups:
            if group.silent:
                continue
            others = rates.compared_with(group.hosts)
            reference = median(others) if others else None
            is_compared |= reference is not None and group.rate_bytes_per_s is not None
            fault = _fault(group, reference, limits)
            is_open = fault is None and rates.leaves_open(group, limits)
            meetings.append(Meeting(number, group.hosts, group.rate_bytes_per_s, fault, is_open))
    return meetings, is_compared


@dataclass(frozen=True, slots=True)
class _Rates:
    """The rates of one round. ``before``: of groups that passed earlier; ``controls``: of wide groups of cleared hosts.

    A wide group is compared with the other wide ones of its round, where there are two or more: the links between
    racks may be slower. Most of these may have a slow host, when many hosts are in doubt. So such a group clears its
    hosts only if it is as fast as all groups of the round, or as the wide groups of hosts that were cleared earlier.
    """

    order: Order
    rated: Sequence[tuple[Group, float]]
    before: Sequence[float]
    controls: Sequence[float]

    @classmethod
    def of(cls, groups: Round, meetings: Sequence[Meeting], order: Order) -> Self:
        rated = [(group.hosts, group.rate_bytes_per_s) for group in groups if group.rate_bytes_per_s is not None]
        before = [each.rate for each in meetings if each.fault is None and each.rate is not None]
        cleared = cleared_by(meetings)
        controls = [rate for hosts, rate in rated if order.is_wide(hosts) and cleared.issuperset(hosts)]
        return cls(order, rated, before, controls)

    def compared_with(self, hosts: Group) -> Sequence[float]:
        alike = self._alike(hosts)
        return (alike if len(alike) >= _ALIKE_MIN else self._others(hosts)) or self.before

    def leaves_open(self, group: GroupResult, limits: PairwiseLimits) -> bool:
        """Return whether a group that is as fast as the other wide ones may be slow all the same."""
        others = self._others(group.hosts)
        if len(self._alike(group.hosts)) < _ALIKE_MIN or _fault(group, median(others), limits) is None:
            return False
        return not self.controls or _fault(group, median(self.controls), limits) is not None

    def _others(self, hosts: Group) -> list[float]:
        return [rate for each, rate in self.rated if each != hosts]

    def _alike(self, hosts: Group) -> list[float]:
        is_wide = self.order.is_wide
        return [rate for each, rate in self.rated if each != hosts and is_wide(hosts) and is_wide(each)]


def _silent(rounds: Sequence[Round]) -> dict[Host, list[int]]:
    """Return for each silent host the rounds in which it was silent since its last answer."""
    found: dict[Host, list[int]] = {}
    for number, groups in enumerate(rounds, start=1):
        for group in groups:
            for host in group.hosts:
                if host in group.silent:
                    found.setdefault(host, []).append(number)
                else:
                    found.pop(host, None)
    return found


def _silence(numbers: Sequence[int]) -> str:
    said = "round" if len(numbers) == 1 else "rounds"
    return f"was silent in {said} {', '.join(map(str, numbers))}"


def _fault(group: GroupResult, reference: float | None, limits: PairwiseLimits) -> str | None:
    rate = group.rate_bytes_per_s
    if rate is None:
        return group.why or "failed"
    if reference is None or rate >= limits.slow_fraction * reference:
        return None
    return f"slow: {rate / 1e6:.3g} MB/s, where the others' median is {reference / 1e6:.3g} MB/s"


def _in_words(host: Host, meeting: Meeting) -> str:
    others = ", ".join(other for other in meeting.hosts if other != host)
    fault = "as slow as other groups between racks" if meeting.is_open else meeting.fault
    return f"round {meeting.number} with {others}: {fault}"


def _doubt(host: Host, known: Known) -> str:
    if len(known.order.place) == 1:
        return "there is no other host to check it with"
    own = [each for each in known.meetings if host in each.hosts]
    said = [_in_words(host, each) for each in own]
    if any(each.is_slow for each in own):
        said.append("no host that it was slow with was faster over a like distance, so racks may be the cause")
    if host in known.silent:
        said.append(_silence(known.silent[host]))
    return "; ".join(said) if said else "it has not passed in any group yet"
