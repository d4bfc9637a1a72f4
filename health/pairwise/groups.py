"""Groups of a pairwise check's next round: each doubted host with a cleared one, and pairs to compare them with."""

from collections.abc import Sequence
from typing import Final

from health.pairwise.proof import PROOFS, Group, Host, Known, did_better, paths_of

_CONTROLS: Final = 3


def next_groups(hosts: Sequence[Host], known: Known, doubted: Sequence[Host]) -> tuple[Group, ...]:
    """Return disjoint groups; none where another round would decide nothing."""
    doubted = [host for host in doubted if len(known.silent.get(host, ())) < PROOFS]
    if not known.meetings and not known.silent:
        return _neighbours(doubted)
    free = [host for host in hosts if host in known.cleared]
    met = {frozenset(meeting.hosts) for meeting in known.meetings}
    groups: list[Group] = []
    left: list[Host] = []
    for host in doubted:
        fresh = [other for other in free if frozenset((host, other)) not in met]
        if not fresh:
            left.append(host)
            continue
        partner = max(fresh, key=lambda other, host=host: _worth(host, other, known))  # type: ignore[misc]
        free.remove(partner)
        # The first host holds the group's store: preferably one that has answered.
        groups.append((partner, host) if host in known.silent else (host, partner))
    groups += _regrouped(left, met)
    groups += _again(known, free)
    witnesses = _witnesses(known, doubted, met, free)
    if not groups and not witnesses:
        return ()
    half = len(free) // 2
    controls = list(zip(free[:half], free[-half:], strict=True)) if half else []
    return (*groups, *witnesses, *controls[: max(_CONTROLS, len(groups))])


def _worth(host: Host, partner: Host, known: Known) -> tuple[float, int]:
    """Return how much a pair may show: first the partner's rate in a group as wide, then how close to wide the pair is.

    The pair is no wider than necessary, so that hosts at the ends are left for controls.
    """
    pair = (host, partner)
    rates = [
        each.rate or 0.0
        for each in known.meetings
        if partner in each.hosts and each.fault is None and known.order.is_as_wide(each.hosts, pair)
    ]
    first, last = known.order.ends(pair)
    return max(rates, default=0.0), -abs(last - first - known.order.wide)


def _witnesses(known: Known, doubted: Sequence[Host], met: set[frozenset[Host]], free: list[Host]) -> list[Group]:
    """Return pairs that show whether a doubted host's slow partners are faster in a group as wide."""
    found: list[Group] = []
    for meeting in known.meetings:
        for host in meeting.hosts:
            if not meeting.is_slow or host not in free or not set(meeting.hosts) & set(doubted):
                continue
            if did_better(host, meeting, known):
                continue
            for other in reversed(free):
                pair = (host, other)
                is_new = other not in meeting.hosts and frozenset(pair) not in met
                if is_new and known.order.is_as_wide(pair, meeting.hosts):
                    free.remove(host)
                    free.remove(other)
                    found.append(pair)
                    break
    return found


def _neighbours(hosts: Sequence[Host]) -> tuple[Group, ...]:
    """Return pairs in order; the last three hosts together where their number is odd."""
    if len(hosts) < 2:
        return ()
    pairs = [tuple(hosts[at : at + 2]) for at in range(0, len(hosts) - 1, 2)]
    if len(hosts) % 2:
        pairs[-1] = (*pairs[-1], hosts[-1])
    return tuple(pairs)


def _regrouped(hosts: Sequence[Host], met: set[frozenset[Host]]) -> list[Group]:
    """Return pairs of hosts that have not met as a pair."""
    left, found = list(hosts), list[Group]()
    while left:
        host = left.pop(0)
        partner = next((other for other in left if frozenset((host, other)) not in met), None)
        if partner is not None:
            left.remove(partner)
            found.append((host, partner))
    return found


def _again(known: Known, free: list[Host]) -> list[Group]:
    """Return pairs that failed once though both hosts pass with others.

    A second try distinguishes a bad path from a passing disturbance.
    """
    found: list[Group] = []
    for pair in sorted(paths_of(known)):
        tries = sum(frozenset(meeting.hosts) == frozenset(pair) for meeting in known.meetings)
        if tries == 1 and all(host in free for host in pair):
            for host in pair:
                free.remove(host)
            found.append(pair)
    return found
