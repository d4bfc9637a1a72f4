"""Whether a rank became slow while it trained, or has computed longer since its first windows.

    a host or a GPU that slows     own/peers  1.0 1.0 1.0 1.2 1.2 1.2
    additional work on rank 0      own/peers  1.2 1.2 1.2 1.2 1.2 1.2      logs, metrics, a second model

Without a reading that shows a cause both look alike, except for their begin. So only a rank whose distance from its
peers grew is named. The upper quartile of its windows before is its past: additional work in each second window is no
new slowness. The distance must grow as a share and in seconds. Where the common work gets shorter, the share of
constant additional work grows. Where it gets longer, the seconds of proportional work do.
"""

import statistics
from collections.abc import Mapping, Sequence

from muster.domain.policy.stragglers import StragglerPolicy
from watch.stragglers.compare import Group
from watch.stragglers.windows import LEAST_BEFORE


def became_slow(
    rank: int,
    group: Group,
    peers: Sequence[int],
    slow: Sequence[int],
    earlier_s: Mapping[int, float],
    rules: StragglerPolicy,
) -> bool:
    """Return whether the rank is farther from its peers in the ``slow`` windows than before them.

    ``slow``: the first steps of the windows. ``earlier_s``: own compute of ranks in windows of another size, for ranks
    with few windows since. Without a known past no change is shown.
    """
    before = [first for first in sorted(group[rank]) if first < min(slow)]
    if len(before) > LEAST_BEFORE:
        before.pop()  # it became slow within this one
    past = _distances(rank, group, peers, before)
    if len(past) < LEAST_BEFORE:
        past = _earlier(rank, peers, earlier_s)
    if not past:
        return False
    now = _distances(rank, group, peers, slow)
    share = statistics.fmean(own_s / usual_s for own_s, usual_s in now)
    more_s = statistics.fmean(own_s - usual_s for own_s, usual_s in now)
    usual_s = statistics.fmean(usual_s for _, usual_s in now)
    is_larger_share = share > rules.ratio * _upper([own / usual for own, usual in past])
    return is_larger_share and more_s - _upper([own - usual for own, usual in past]) > (rules.ratio - 1) * usual_s


def _distances(rank: int, group: Group, peers: Sequence[int], firsts: Sequence[int]) -> list[tuple[float, float]]:
    """Return own compute of the rank and the median of its peers in each window."""
    found = []
    for first in firsts:
        others = [group[peer][first].means["own_s"] for peer in peers if first in group[peer]]
        usual_s = statistics.median(others) if others else 0.0
        if usual_s > 0 and first in group[rank]:
            found.append((group[rank][first].means["own_s"], usual_s))
    return found


def _earlier(rank: int, peers: Sequence[int], earlier_s: Mapping[int, float]) -> list[tuple[float, float]]:
    others = [earlier_s[peer] for peer in peers if peer in earlier_s]
    usual_s = statistics.median(others) if others else 0.0
    return [(earlier_s[rank], usual_s)] if rank in earlier_s and usual_s > 0 else []


def _upper(values: Sequence[float]) -> float:
    """Return the upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive")[2] if len(values) > 1 else values[0]
