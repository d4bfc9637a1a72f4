"""The health score of one GPU: 0 to 100, from its active evidence alone.

Each evidence takes points off: all of them when last seen, half after each half life of its severity, none once its
time is over. Points are computed in thousandths, as whole numbers, so that the same evidence gives the same score
everywhere and the score never falls by time alone.

A standing fault weighs once, however often it recurred, and so does an NVLink fabric, in however many readings it
shows. A fault that only warns weighs once, too: repeated log lines alone do not take a GPU out; rules about repetitions
do. A worse fault of a moment weighs once a burst (``health.evidence.bursts``).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from health.evidence.bursts import Line, burst_of, heaviest_apart, heaviest_in_all, in_line
from health.evidence.proofs import Proofs
from health.evidence.state import counts, is_condemning, lasts
from health.evidence.suppression import weighs_from_ms
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import HealthPolicy, ScorePolicy, WeightPolicy

_FULL: Final = 100_000
"""A full score, in thousandths of a point."""


class Band(StrEnum):
    """The range of a score by the policy's lines: at least the raise, lower, quarantine line, or under all."""

    GOOD = "good"
    FAIR = "fair"
    POOR = "poor"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Score:
    """A score with its parts.

    ``value``: 0 to 100. ``measured_value``: the same from measured evidence alone, which decides about quarantine.
    ``valid_until_ms``: the first time at which time alone may change the band (decay, or pending evidence), else None.
    ``shares``: the points that each evidence takes off, the heaviest first, before the caps of reported evidence and of
    a score of 0; evidence that takes off nothing is left out.
    """

    value: float
    measured_value: float
    band: Band
    valid_until_ms: int | None
    shares: tuple[tuple[EvidenceId, float], ...]


@dataclass(frozen=True, slots=True)
class Weighed:
    """A score without its time: the fields mean the same as in ``Score``."""

    value: float
    measured_value: float
    shares: tuple[tuple[EvidenceId, float], ...]


_WHOLE: Final = Weighed(_FULL / 1000, _FULL / 1000, ())
"""The score where nothing weighs, as with most GPUs most of the time."""


def score(evidence: Iterable[Evidence], policy: HealthPolicy, now_ms: int, proofs: Proofs | None = None) -> Score:
    """Return the score at ``now_ms``.

    ``proofs``: evidence that they answer weighs nothing. Neither does dismissed or suspended evidence, nor evidence
    about the node alone. Evidence last seen after ``now_ms`` weighs in full.
    """
    told = tuple(evidence)
    live = [each for each in told if _weighs(each, policy.score, now_ms, proofs)]
    pending_ms = next_to_weigh_ms(told, now_ms)
    if not live:
        return Score(
            _WHOLE.value, _WHOLE.measured_value, band_of(_WHOLE.value, policy.score), pending_ms, _WHOLE.shares
        )
    weighed = _weigh(live, policy, now_ms)
    ends = [at_ms for at_ms in (_next_band_ms(live, policy, now_ms), pending_ms) if at_ms is not None]
    return Score(
        value=weighed.value,
        measured_value=weighed.measured_value,
        band=band_of(weighed.value, policy.score),
        valid_until_ms=min(ends, default=None),
        shares=weighed.shares,
    )


def next_to_weigh_ms(evidence: Iterable[Evidence], now_ms: int) -> int | None:
    """Return when the next pending evidence will weigh, if it still stands then."""
    due = (weighs_from_ms(each) for each in evidence)
    return min((at_ms for at_ms in due if at_ms is not None and at_ms > now_ms), default=None)


def weigh(evidence: Iterable[Evidence], policy: HealthPolicy, now_ms: int, proofs: Proofs | None = None) -> Weighed:
    """Return the score as ``score`` gives it, without the search for how long its band lasts."""
    return _weigh([each for each in evidence if _weighs(each, policy.score, now_ms, proofs)], policy, now_ms)


def weighing_as_one(
    evidence: Iterable[Evidence], policy: HealthPolicy, now_ms: int, proofs: Proofs | None = None
) -> tuple[tuple[Evidence, ...], ...]:
    """Return all evidence that weighs, or would without the rest of its group: a group weighs once.

    The heaviest group is first, and the heaviest evidence in each. If one is removed, the next of its group weighs.
    """
    groups: dict[tuple[object, ...], list[Evidence]] = {}
    live = [
        each
        for each in evidence
        if _weighs(each, policy.score, now_ms, proofs) and _thousandths(each, policy.score, now_ms)
    ]
    for key, alike in _kinds(live).items():
        if key[-1]:
            groups[key] = alike
            continue
        for number, burst in enumerate(burst_of(alike, policy)):
            groups[*key, number] = burst

    def weight(each: Evidence) -> tuple[int, EvidenceId]:
        return -_thousandths(each, policy.score, now_ms), each.id

    found = (tuple(sorted(group, key=weight)) for group in groups.values())
    return tuple(sorted(found, key=lambda group: weight(group[0])))


def band_of(value: float, policy: ScorePolicy) -> Band:
    if value >= policy.raise_line:
        return Band.GOOD
    if value >= policy.lower_line:
        return Band.FAIR
    return Band.POOR if value >= policy.quarantine_line else Band.BAD


def _weigh(live: Sequence[Evidence], policy: HealthPolicy, now_ms: int) -> Weighed:
    if not live:
        return _WHOLE
    found = _taken(live, policy, now_ms)
    measured = sum(taken for each, taken in found if each.trust is Trust.MEASURED)
    reported = sum(taken for each, taken in found if each.trust is not Trust.MEASURED)
    shares = [(each.id, taken / 1000) for each, taken in found if taken]
    shares.sort(key=lambda share: (-share[1], share[0]))
    return Weighed(*_values(measured, reported, policy.score), tuple(shares))


def _values(measured: int, reported: int, policy: ScorePolicy) -> tuple[float, float]:
    """Return the score, and the score of measured evidence alone, from the thousandths that are taken off."""
    reported = min(reported, int(policy.reported_points_max * 1000))
    return max(0, _FULL - measured - reported) / 1000, max(0, _FULL - measured) / 1000


def _weighs(evidence: Evidence, policy: ScorePolicy, now_ms: int, proofs: Proofs | None) -> bool:
    if evidence.gpu_uuid is None or not counts(evidence):
        return False
    if proofs is not None and proofs.answer(evidence):
        return False
    if is_condemning(evidence):
        return True
    return now_ms < _ends_ms(evidence) and _weight_of(evidence, policy).points > 0


def _ends_ms(evidence: Evidence) -> int:
    return evidence.last_seen_ms + evidence.counts_for_ms


def _weight_of(evidence: Evidence, policy: ScorePolicy) -> WeightPolicy:
    """Return the weight of the evidence; reported evidence weighs as degraded at most."""
    severity = min(evidence.severity, Severity.DEGRADED) if evidence.trust is Trust.REPORTED else evidence.severity
    return policy.weight(severity, evidence.detector)


class _Decay(NamedTuple):
    """The points of one evidence over time. ``points``: thousandths, when it was just seen."""

    last_seen_ms: int
    counts_for_ms: int
    points: float
    half_life_ms: float
    is_constant: bool

    def at(self, at_ms: int) -> int:
        if self.is_constant:
            return int(self.points)
        age_ms = max(0, at_ms - self.last_seen_ms)
        return 0 if age_ms >= self.counts_for_ms else int(self.points * 0.5 ** (age_ms / self.half_life_ms))


def _decay_of(evidence: Evidence, policy: ScorePolicy) -> _Decay:
    weight = _weight_of(evidence, policy)
    return _Decay(
        evidence.last_seen_ms,
        evidence.counts_for_ms,
        weight.points * 1000,
        weight.half_life_s * 1000,
        is_condemning(evidence),
    )


def _thousandths(evidence: Evidence, policy: ScorePolicy, at_ms: int) -> int:
    """Return the points that it takes off, in thousandths."""
    return _decay_of(evidence, policy).at(at_ms)


def _kinds(live: Iterable[Evidence]) -> dict[tuple[str, Trust, bool], list[Evidence]]:
    """Return the evidence by fault, trust and whether it weighs once, as standing and merely warning faults do."""
    found = dict[tuple[str, Trust, bool], list[Evidence]]()
    for each in live:
        weighs_once = each.severity <= Severity.WARNING or lasts(each)
        fault = each.traits.weighs_as if weighs_once else each.traits.shown_as
        found.setdefault((fault, each.trust, weighs_once), []).append(each)
    return found


def _taken(live: Sequence[Evidence], policy: HealthPolicy, at_ms: int) -> list[tuple[Evidence, int]]:
    """Return the evidence that weighs, with its thousandths: of faults that weigh once the heaviest evidence alone."""
    found = list[tuple[Evidence, int]]()
    for (_, _, weighs_once), alike in _kinds(live).items():
        weights = [(each, _thousandths(each, policy.score, at_ms)) for each in alike]
        if weighs_once:
            found.append(max(weights, key=lambda known: (known[1], known[0].last_seen_ms, known[0].id)))
        else:
            found += heaviest_apart(weights, policy)
    return found


def _bands(live: Sequence[Evidence], policy: HealthPolicy) -> Callable[[int], Band]:
    """Return the function from time to band, with the order of each fault's evidence computed once."""
    once, apart = list[tuple[Trust, list[_Decay]]](), list[tuple[Trust, Line, list[_Decay]]]()
    for (_, trust, weighs_once), alike in _kinds(live).items():
        if weighs_once:
            once.append((trust, _heaviest_ever(_decay_of(each, policy.score) for each in alike)))
        else:
            line = in_line(alike, policy)
            apart.append((trust, line, [_decay_of(each, policy.score) for each in line.evidence]))

    def band_at(at_ms: int) -> Band:
        taken = {Trust.MEASURED: 0, Trust.REPORTED: 0}
        for trust, decays in once:
            taken[trust] += max(each.at(at_ms) for each in decays)
        for trust, line, decays in apart:
            taken[trust] += heaviest_in_all(line, lambda number, of=decays: of[number].at(at_ms), _FULL)  # type: ignore[misc]  # bound at once
        return band_of(_values(taken[Trust.MEASURED], taken[Trust.REPORTED], policy.score)[0], policy.score)

    return band_at


def _heaviest_ever(decays: Iterable[_Decay]) -> list[_Decay]:
    """Return the newest of all decays with equal parameters: the others weigh no more at any time."""
    newest = dict[tuple[float | bool, ...], _Decay]()
    for each in decays:
        if each.last_seen_ms >= newest.get(each[1:], each).last_seen_ms:
            newest[each[1:]] = each
    return list(newest.values())


def _next_band_ms(live: Sequence[Evidence], policy: HealthPolicy, now_ms: int) -> int | None:
    """Return the first later time with another band: the score only rises by time alone, so halving finds it."""
    band_at = _bands(live, policy)
    present = band_at(now_ms)
    low, high = now_ms, max((_ends_ms(each) for each in live), default=now_ms)
    if high <= now_ms or band_at(high) is present:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if band_at(middle) is present else (low, middle)
    return high
