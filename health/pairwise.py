"""Which hosts of a gang are bad, from all-gathers of small groups: who meets whom next, and what the rounds have shown.

A group passes when all its hosts work: then each of them is *cleared*. A group that failed, or was slow beside the
others of its round, says only that one of its hosts is bad. So the first round pairs neighbours (three, where their
number is odd), and each later one puts every host in doubt beside a cleared one that it has not failed with. A host is
named only when it failed in two groups in which all others are cleared, and passed in none: neither one bad path nor
one noisy moment accuses anybody. Where no cleared host is free, those in doubt meet one another anew.

*Slow* is under a fraction of the median of the other groups of the same round, never under a fixed number: where most
are slow alike, none is. Idle cleared hosts are paired beside those in doubt, so that there is something to compare
with.

Source of the idea: DLRover's node check (pairs of neighbours, then the fastest with the slowest; slow is over twice the
median time), which cannot say which of a pair it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

Host = str
Group = tuple[Host, ...]
PROOFS: Final = 2
"""Groups with nobody else to blame that a host must have failed in before it is named."""
_CONTROLS: Final = 3


@dataclass(frozen=True, slots=True)
class PairwiseLimits:
    """``slow_fraction``: a rate under that part of the other groups' median is slow."""

    rounds_max: int = 4
    slow_fraction: float = 0.5


@dataclass(frozen=True, slots=True)
class GroupResult:
    """How the all-gather of one group went.

    ``rate_bytes_per_s``: what each host received from the others by second; None where it failed, and ``why`` says how.
    ``silent``: hosts that were not heard at all; then nothing is said of the others.
    """

    hosts: Group
    rate_bytes_per_s: float | None = None
    why: str = ""
    silent: frozenset[Host] = frozenset()


Round = tuple[GroupResult, ...]


@dataclass(frozen=True, slots=True)
class Assessment:
    """What is known after some rounds. ``bad`` and ``undecided``: host → why.

    ``paths``: two hosts that failed with each other, while each passed with others. ``next_groups``: of the next
    round, disjoint; empty where another would decide nothing, or there have been enough.
    ``is_speed_compared``: whether there was ever a second group to compare a rate with.
    """

    cleared: tuple[Host, ...] = ()
    bad: Mapping[Host, str] = field(default_factory=dict)
    undecided: Mapping[Host, str] = field(default_factory=dict)
    paths: tuple[Group, ...] = ()
    next_groups: tuple[Group, ...] = ()
    is_speed_compared: bool = False


@dataclass(frozen=True, slots=True)
class _Meeting:
    """A group as it is judged. ``fault`` None: it passed."""

    number: int
    hosts: Group
    rate: float
    fault: str | None


def assess(hosts: Sequence[Host], rounds: Sequence[Round], limits: PairwiseLimits) -> Assessment:
    """What ``rounds`` have shown of ``hosts``, and who meets whom next.

    ``hosts``: in the order of the topology, neighbours beside each other.

    Raises:
        ValueError: a host is named twice.
    """
    if len(set(hosts)) != len(hosts):
        raise ValueError("pairwise check: a host is named twice; each must be named once")
    meetings, silent, is_compared = _judged(rounds, limits)
    cleared = {host for meeting in meetings if meeting.fault is None for host in meeting.hosts} - silent.keys()
    bad = dict(silent)
    for host in hosts:
        proofs = [] if host in cleared | bad.keys() else _proofs(host, meetings, cleared)
        if len(proofs) >= PROOFS:
            bad[host] = "; ".join(_in_words(host, meeting) for meeting in proofs)
    doubted = [host for host in hosts if host not in cleared and host not in bad]
    return Assessment(
        cleared=tuple(host for host in hosts if host in cleared),
        bad={host: bad[host] for host in hosts if host in bad},
        undecided={host: _doubt(host, meetings, len(hosts)) for host in doubted},
        paths=tuple(sorted(_paths(meetings, cleared))),
        next_groups=_next_groups(hosts, meetings, cleared, doubted) if len(rounds) < limits.rounds_max else (),
        is_speed_compared=is_compared,
    )


def _judged(rounds: Sequence[Round], limits: PairwiseLimits) -> tuple[list[_Meeting], dict[Host, str], bool]:
    """Every group that says something, the silent hosts, and whether any rate had another beside it."""
    meetings: list[_Meeting] = []
    silent: dict[Host, str] = {}
    is_compared = False
    for number, groups in enumerate(rounds, start=1):
        before = [meeting.rate for meeting in meetings if meeting.fault is None]
        for place, group in enumerate(groups):
            silent |= {host: f"was not heard in round {number}" for host in group.silent if host not in silent}
            if group.silent:
                continue
            beside = [
                other.rate_bytes_per_s
                for position, other in enumerate(groups)
                if position != place and other.rate_bytes_per_s is not None
            ]
            reference = median(beside or before) if beside or before else None
            is_compared |= reference is not None and group.rate_bytes_per_s is not None
            fault = _fault(group, reference, limits)
            meetings.append(_Meeting(number, group.hosts, group.rate_bytes_per_s or 0.0, fault))
    return meetings, silent, is_compared


def _fault(group: GroupResult, reference: float | None, limits: PairwiseLimits) -> str | None:
    rate = group.rate_bytes_per_s
    if rate is None:
        return group.why or "failed"
    if reference is None or rate >= limits.slow_fraction * reference:
        return None
    return f"slow: {rate / 1e6:.3g} MB/s, where the others' median is {reference / 1e6:.3g} MB/s"


def _proofs(host: Host, meetings: Sequence[_Meeting], cleared: set[Host]) -> list[_Meeting]:
    """Groups that it failed in with nobody else to blame; the same group again is no second proof."""
    found: dict[frozenset[Host], _Meeting] = {}
    for meeting in meetings:
        others = frozenset(meeting.hosts) - {host}
        if host in meeting.hosts and meeting.fault is not None and others <= cleared:
            found.setdefault(others, meeting)
    return list(found.values())


def _in_words(host: Host, meeting: _Meeting) -> str:
    others = ", ".join(other for other in meeting.hosts if other != host)
    return f"round {meeting.number} with {others}: {meeting.fault}"


def _doubt(host: Host, meetings: Sequence[_Meeting], num_hosts: int) -> str:
    if num_hosts == 1:
        return "there is no other host to meet"
    own = [_in_words(host, meeting) for meeting in meetings if host in meeting.hosts]
    return "; ".join(own) if own else "it has passed in no group yet"


def _paths(meetings: Sequence[_Meeting], cleared: set[Host]) -> set[Group]:
    """Pairs of cleared hosts whose last meeting failed."""
    last = {tuple(sorted(meeting.hosts)): meeting for meeting in meetings if cleared.issuperset(meeting.hosts)}
    return {pair for pair, meeting in last.items() if len(pair) == 2 and meeting.fault is not None}


def _next_groups(
    hosts: Sequence[Host], meetings: Sequence[_Meeting], cleared: set[Host], doubted: Sequence[Host]
) -> tuple[Group, ...]:
    if not meetings:
        return _neighbours(doubted)
    best = {
        host: max((each.rate for each in meetings if host in each.hosts and each.fault is None), default=0.0)
        for host in cleared
    }
    free = sorted((host for host in hosts if host in cleared), key=lambda host: -best[host])
    met = {frozenset(meeting.hosts) for meeting in meetings}
    groups: list[Group] = []
    left: list[Host] = []
    for host in doubted:
        partner = next((other for other in free if frozenset((host, other)) not in met), None)
        if partner is None:
            left.append(host)
        else:
            free.remove(partner)
            groups.append((host, partner))
    groups += _anew(left, met)
    groups += _again(meetings, cleared, free)
    controls = [tuple(free[at : at + 2]) for at in range(0, len(free) - 1, 2)]
    return (*groups, *controls[: max(_CONTROLS, len(groups))]) if groups else ()


def _neighbours(hosts: Sequence[Host]) -> tuple[Group, ...]:
    """Pairs in order; the last three together where their number is odd."""
    if len(hosts) < 2:
        return ()
    pairs = [tuple(hosts[at : at + 2]) for at in range(0, len(hosts) - 1, 2)]
    if len(hosts) % 2:
        pairs[-1] = (*pairs[-1], hosts[-1])
    return tuple(pairs)


def _anew(hosts: Sequence[Host], met: set[frozenset[Host]]) -> list[Group]:
    """Pairs of hosts that have not met as a pair."""
    left, found = list(hosts), list[Group]()
    while left:
        host = left.pop(0)
        partner = next((other for other in left if frozenset((host, other)) not in met), None)
        if partner is not None:
            left.remove(partner)
            found.append((host, partner))
    return found


def _again(meetings: Sequence[_Meeting], cleared: set[Host], free: list[Host]) -> list[Group]:
    """Pairs that failed once though both their hosts pass with others: a second time tells a path from a moment."""
    found: list[Group] = []
    for pair in sorted(_paths(meetings, cleared)):
        tries = sum(frozenset(meeting.hosts) == frozenset(pair) for meeting in meetings)
        if tries == 1 and all(host in free for host in pair):
            for host in pair:
                free.remove(host)
            found.append(pair)
    return found
