"""Bursts: a fault that recurs within minutes weighs once, a sticky XID once within hours.

Source: NVSentinel's analyzer: bursts are 3 minutes apart; XIDs 74, 79, 95, 109 and 119 are sticky for 3 hours. These
are the numbers by which ``fatal_repeats`` counts bursts.

The heaviest selection weighs in which all are the gap apart. A burst as a chain, where each evidence is within the gap
of the next, would not do: evidence between two bursts would join them, and so raise the score.

For a gap of 3 minutes and evidence at minutes 0, 2 and 4 with weights 5, 8 and 5::

    minute   0    2    4
    weight   5    8    5     0 and 4 are apart, 2 is apart from neither
                             heaviest apart: 5 + 5 = 10; the chain of all three would weigh 8
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from health.evidence.state import CODE
from muster.domain.evidence.findings import Evidence
from muster.domain.policy.health import HealthPolicy

Weight = tuple[Evidence, int]


@dataclass(frozen=True, slots=True)
class Line:
    """Evidence of one fault in the order of time.

    ``num_before``: for each, how many of the line are at least the gap before it.
    """

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
    """Return the selection of one fault's evidence that weighs most in total, where each is apart from the next.

    Weighted interval scheduling: so more evidence never weighs less, and falling weights never weigh more. Among equal
    selections the newest is returned.
    """
    if len(weights) == 1:
        return list(weights)
    line, weight_of = in_line((each for each, _ in weights), policy), {each.id: taken for each, taken in weights}
    in_time = [weight_of[each.id] for each in line.evidence]
    best = _best_of_each(line, in_time)
    found, number = list[Weight](), len(in_time)
    while number:
        with_it = best[line.num_before[number - 1]] + in_time[number - 1]
        if with_it >= best[number - 1]:  # of equal totals the one with the newer evidence
            found.append((line.evidence[number - 1], in_time[number - 1]))
            number = line.num_before[number - 1]
        else:
            number -= 1
    return found[::-1]


def heaviest_in_all(line: Line, weight_of: Callable[[int], int], enough: int) -> int:
    """Return the total weight of ``heaviest_apart``; if it reaches ``enough``, any total that does.

    ``weight_of``: the weight of the evidence with that number in the line. The newest that are apart are mostly enough
    by themselves, however long the line is.
    """
    total, number = 0, len(line.evidence)
    while number and total < enough:
        total += weight_of(number - 1)
        number = line.num_before[number - 1]
    if total >= enough:
        return total
    return _best_of_each(line, list(map(weight_of, range(len(line.evidence)))))[-1]


def _best_of_each(line: Line, weights: Sequence[int]) -> list[int]:
    """Return for each number the highest total weight among so many first of the line."""
    best = [0]
    for num_before, weight in zip(line.num_before, weights, strict=True):
        best.append(max(best[num_before] + weight, best[-1]))
    return best


def burst_of(alike: Sequence[Evidence], policy: HealthPolicy) -> list[list[Evidence]]:
    """Return the evidence of one fault by burst. Removing a whole burst removes all that could weigh for it."""
    bursts: list[list[Evidence]] = []
    last_ms = 0
    for each in sorted(alike, key=lambda one: (one.last_seen_ms, one.id)):
        if not bursts or last_ms < each.onset_ms - gap_ms_of(each, policy):
            bursts.append([])
        bursts[-1].append(each)
        last_ms = each.last_seen_ms
    return bursts


def gap_ms_of(evidence: Evidence, policy: HealthPolicy) -> int:
    """Return the distance from the evidence before at which it weighs in addition to that."""
    rule = policy.detectors.fatal_repeats
    sticks = evidence.values.get(CODE) in rule.sticky
    return int((rule.sticky_gap_s if sticks else rule.gap_s) * 1000)
