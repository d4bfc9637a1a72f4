"""Bursts: one fault that comes again within minutes weighs once; an XID that sticks, within hours.

Source: NVSentinel's analyzer: bursts lie 3 minutes apart; XIDs 74, 79, 95, 109 and 119 stick for 3 hours. The numbers
are those by which ``fatal_repeats`` counts bursts.

What weighs are the heaviest that lie apart, each from the next. A burst as a chain, from one to the next within the
gap, would not do: evidence between two bursts would make them one, and so raise the score.
"""

from bisect import bisect_left
from collections.abc import Sequence

from health.detectors import xid
from muster.domain.evidence import Evidence
from muster.domain.health_policy import HealthPolicy

Weight = tuple[Evidence, int]


def heaviest_apart(weights: Sequence[Weight], policy: HealthPolicy) -> list[Weight]:
    """Of evidence of one fault the part that weighs the most in all, with each apart from the next.

    Weighted interval scheduling: so more evidence never weighs less, and weights that fall never weigh more. Of parts
    that weigh alike the newest.
    """
    if len(weights) == 1:
        return list(weights)
    in_time = sorted(weights, key=lambda weight: (weight[0].last_seen_ms, weight[0].id))
    ends = [each.last_seen_ms for each, _ in in_time]
    best: list[tuple[int, list[Weight]]] = [(0, [])]
    for number, weight in enumerate(in_time):
        each, taken = weight
        num_before = bisect_left(ends, each.onset_ms - gap_ms_of(each, policy), 0, number)
        with_it = best[num_before][0] + taken
        without = best[-1]
        best.append((with_it, [*best[num_before][1], weight]) if with_it >= without[0] else without)
    return best[-1][1]


def burst_of(alike: Sequence[Evidence], policy: HealthPolicy) -> list[list[Evidence]]:
    """Evidence of one fault, by burst: whoever takes out a whole one takes out all that could weigh for it."""
    bursts: list[list[Evidence]] = []
    last_ms = 0
    for each in sorted(alike, key=lambda one: (one.last_seen_ms, one.id)):
        if not bursts or last_ms < each.onset_ms - gap_ms_of(each, policy):
            bursts.append([])
        bursts[-1].append(each)
        last_ms = each.last_seen_ms
    return bursts


def gap_ms_of(evidence: Evidence, policy: HealthPolicy) -> int:
    """How far from the one before it must lie to weigh beside that."""
    rule = policy.detectors.fatal_repeats
    sticks = evidence.values.get(xid.CODE) in rule.sticky
    return int((rule.sticky_gap_s if sticks else rule.gap_s) * 1000)
