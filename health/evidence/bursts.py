"""Bursts: one fault that comes again within minutes weighs once; an XID that sticks, within hours.

Source: NVSentinel's analyzer: bursts lie 3 minutes apart; XIDs 74, 79, 95, 109 and 119 stick for 3 hours. The numbers
are those by which ``fatal_repeats`` counts bursts.

What weighs are the heaviest that lie apart, each from the next. A burst as a chain, from one to the next within the
gap, would not do: evidence between two bursts would make them one, and so raise the score.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from health.detectors.gpu import xid
from muster.domain.evidence.findings import Evidence
from muster.domain.policy.health import HealthPolicy

Weight = tuple[Evidence, int]


@dataclass(frozen=True, slots=True)
class Line:
    """Evidence of one fault in the order of time. ``num_before``: how many of the line lie apart before each."""

    evidence: tuple[Evidence, ...]
    num_before: tuple[int, ...]


def in_line(alike: Iterable[Evidence], policy: HealthPolicy) -> Line:
    in_time = sorted(alike, key=lambda each: (each.last_seen_ms, each.id))
    ends = [each.last_seen_ms for each in in_time]
    num_before = (
        bisect_left(ends, each.onset_ms - gap_ms_of(each, policy), 0, number) for number, each in enumerate(in_time)
    )
    return Line(tuple(in_time), tuple(num_before))


def heaviest_apart(weights: Sequence[Weight], policy: HealthPolicy) -> list[Weight]:
    """Of evidence of one fault the part that weighs the most in all, with each apart from the next.

    Weighted interval scheduling: so more evidence never weighs less, and weights that fall never weigh more. Of parts
    that weigh alike the newest.
    """
    if len(weights) == 1:
        return list(weights)
    line, weight_of = in_line((each for each, _ in weights), policy), {each.id: taken for each, taken in weights}
    in_time = [weight_of[each.id] for each in line.evidence]
    best = _best_of_each(line, in_time)
    found, number = list[Weight](), len(in_time)
    while number:
        with_it = best[line.num_before[number - 1]] + in_time[number - 1]
        if with_it >= best[number - 1]:
            found.append((line.evidence[number - 1], in_time[number - 1]))
            number = line.num_before[number - 1]
        else:
            number -= 1
    return found[::-1]


def heaviest_in_all(line: Line, weight_of: Callable[[int], int], enough: int) -> int:
    """What ``heaviest_apart`` weighs in all, or any that is ``enough`` where that is not less.

    ``weight_of``: of the evidence of that number in the line. The newest that lie apart are mostly enough by
    themselves, however long the line is.
    """
    total, number = 0, len(line.evidence)
    while number and total < enough:
        total += weight_of(number - 1)
        number = line.num_before[number - 1]
    if total >= enough:
        return total
    return _best_of_each(line, list(map(weight_of, range(len(line.evidence)))))[-1]


def _best_of_each(line: Line, weights: Sequence[int]) -> list[int]:
    """For each number the most that so many of the line's first weigh in all."""
    best = [0]
    for num_before, weight in zip(line.num_before, weights, strict=True):
        best.append(max(best[num_before] + weight, best[-1]))
    return best


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
