"""The standing table: the move that the rules make of one GPU now.

Persons' moves are in ``health.standing.interventions``. Pure and total: the same case, policy and clock give the same
move (I19). A move to QUARANTINED is a proposal until ``health.standing.breaker`` has allowed it. Moves are damped:
raising needs a higher line than falling and a dwell time; repeated falls are flapping; and evidence older than
``stale_action_s`` moves nothing unless it condemns (I26).

A GPU under the default policy, with a fault of 35 points at hour 0 and one that condemns at hour 30::

    hour   move                      since
    0      HEALTHY → SUSPECT         the score of 65 is under 70
    15.2   SUSPECT → HEALTHY         the decayed fault left the score at 85 or above for half an hour
    30     HEALTHY → QUARANTINED     the evidence condemns, whatever the score
    32     QUARANTINED → PROBATION   a burn-in passed that began after all evidence
    704    PROBATION → HEALTHY       28 days were without a warning
"""

from collections.abc import Callable, Mapping
from typing import Final

from health.evidence.state import counts, is_condemning, is_open, lasts
from health.scoring.score import Score, Weighed
from health.standing.gpu_case import (
    RULE,
    BurnInResult,
    GpuCase,
    Move,
    MoveReason,
    condemning_of,
    move_to,
    return_to_of,
    score_of,
    weighed,
)
from health.standing.proof_under_load import unproved
from health.standing.retirement import retirement_of, used_up_until_ms
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import DAY_S, HealthPolicy
from muster.domain.states import Standing

EXPECTED_IN_REPAIR: Final = frozenset({"gpu_lost", "freshness"})
"""Detectors that do not count against a GPU under repair: a reset or reboot removes it for a while."""


_QUARANTINED_OR_IN_REPAIR: Final = frozenset({Standing.QUARANTINED, Standing.REPAIR})
MOVES_AT_ONCE: Final = 3
"""The most moves that the rules make of one GPU at one moment, such as a fall, a second one and its retirement."""


def decide(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    """Return the one move that the rules make now, or None. ``now_ms``: wall clock, milliseconds."""
    rule = _RULE_OF_STANDING.get(gpu.standing)
    return rule(gpu, now_ms, policy) if rule is not None else None


def next_evaluation_ms(gpu: GpuCase, now_ms: int, policy: HealthPolicy, found: Score | None = None) -> int | None:
    """Return when to decide again without new input; None where time alone changes nothing.

    Decay, dwell, the end of a probation, of a repair's time limit, and of the window of repairs decide. ``found``: its
    score at ``now_ms``, where the caller has it.
    """
    score = found or score_of(gpu, policy, now_ms)
    due: list[int | None] = [score.valid_until_ms]
    if gpu.standing is Standing.PROBATION:
        due.append(clean_since_ms(gpu) + _ms(policy.standing.probation_s))
        due.append(gpu.since_ms + _ms(policy.standing.reclaimable_only_s))
    if gpu.standing is Standing.REPAIR:
        due.append(gpu.since_ms + _ms(policy.repair.limit_s(gpu.under_way)))
    if gpu.standing in {Standing.QUARANTINED, Standing.REPAIR}:
        due.append(used_up_until_ms(gpu, now_ms, policy))
    if gpu.standing is Standing.SUSPECT:
        dwell_ms = _ms(policy.standing.raise_dwell_s)
        raised_ms = score_of(gpu, policy, now_ms - dwell_ms).valid_until_ms
        due += [gpu.since_ms + dwell_ms, None if raised_ms is None else raised_ms + dwell_ms]
    return min((at_ms for at_ms in due if at_ms is not None and at_ms > now_ms), default=None)


def is_reclaimable_only(standing: Standing, since_ms: int, now_ms: int, policy: HealthPolicy) -> bool:
    """Return whether a GPU's probation is so young that only reclaimable tiers may have it."""
    return standing is Standing.PROBATION and now_ms - since_ms < _ms(policy.standing.reclaimable_only_s)


def _unproven(gpu: GpuCase, now_ms: int, _policy: HealthPolicy) -> Move | None:
    condemned = _condemned(gpu, now_ms)
    if condemned is not None:
        return condemned
    newest = _newest_burn_in(gpu)
    if newest is None or newest.began_ms < gpu.since_ms:
        return None
    if not newest.has_passed:
        return _to_quarantine(gpu, MoveReason.BURN_IN_FAILED, now_ms)
    return move_to(gpu, Standing.PROBATION, MoveReason.BURN_IN_PASSED, now_ms) if _proves(newest, gpu) else None


def _probation(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    fall = _falling(gpu, now_ms, policy)
    if fall is not None:
        return fall
    is_over = now_ms - clean_since_ms(gpu) >= _ms(policy.standing.probation_s)
    if not is_over or not gpu.has_contact:
        return None
    return move_to(gpu, Standing.HEALTHY, MoveReason.PROBATION_OVER, now_ms)


def _falling(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    """Return the fall from PROBATION or HEALTHY: to QUARANTINED, else to SUSPECT."""
    # The worse move first: a GPU must not wait a round as SUSPECT for the quarantine that is due already.
    quarantine = _quarantine(gpu, now_ms, policy)
    if quarantine is not None:
        return quarantine
    score, line = weighed(gpu, policy, now_ms), policy.score.lower_line
    weighing = tuple(evidence_id for evidence_id, _ in score.shares)
    if score.value >= line or not _is_fresh(gpu, weighing, now_ms, policy):
        return None
    is_measured = score.measured_value < line and _is_fresh(gpu, _measured(gpu, score), now_ms, policy)
    reason = MoveReason.LOW_SCORE if is_measured else MoveReason.REPORTED_EVIDENCE
    words = f"score {score.value:.1f} is under {line:g}"
    return move_to(gpu, Standing.SUSPECT, reason, now_ms, evidence_ids=weighing, return_to=gpu.standing, text=words)


def _suspect(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    quarantine = _quarantine(gpu, now_ms, policy)
    if quarantine is not None:
        return quarantine
    dwelt_from_ms = now_ms - _ms(policy.standing.raise_dwell_s)
    if gpu.since_ms > dwelt_from_ms or not gpu.has_contact:
        return None
    # All evidence seen since then weighs in full: the score was at least this for all of the dwell time.
    if weighed(gpu, policy, dwelt_from_ms).value < policy.score.raise_line or unproved(gpu, policy):
        return None
    return move_to(gpu, gpu.origin or Standing.PROBATION, MoveReason.RECOVERED, now_ms)


def _quarantined(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    newest = _newest_burn_in(gpu)
    if newest is not None and newest.has_passed and _proves(newest, gpu):
        return move_to(gpu, Standing.PROBATION, MoveReason.BURN_IN_PASSED, now_ms)
    return retirement_of(gpu, now_ms, policy) if policy.repair.retires_by_rule else None


def _repair(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    new = [
        each.id
        for each in condemning_of(gpu)
        if _is_reported_since(each, gpu.since_ms, policy) and each.detector not in EXPECTED_IN_REPAIR
    ]
    if new:
        return _to_quarantine(gpu, MoveReason.CONDEMNED, now_ms, tuple(new))
    if now_ms - gpu.since_ms >= _ms(policy.repair.limit_s(gpu.under_way)):
        return _to_quarantine(gpu, MoveReason.REPAIR_TIMED_OUT, now_ms)
    return None


def _is_reported_since(evidence: Evidence, since_ms: int, policy: HealthPolicy) -> bool:
    """Return whether the fault is news since the repair began; a fault that was seen to be over supports the repair.

    The standing fault under repair is stated repeatedly meanwhile: only its return is news.
    """
    if evidence.onset_ms > since_ms:
        return True
    stands = lasts(evidence) or evidence.detector in policy.evidence.standing_detectors
    told_ms = evidence.reopened_at_ms or 0 if stands else evidence.last_seen_ms
    return is_open(evidence) and told_ms > since_ms


_RULE_OF_STANDING: Final[Mapping[Standing, Callable[[GpuCase, int, HealthPolicy], Move | None]]] = {
    Standing.UNPROVEN: _unproven,
    Standing.PROBATION: _probation,
    Standing.HEALTHY: _falling,
    Standing.SUSPECT: _suspect,
    Standing.QUARANTINED: _quarantined,
    Standing.REPAIR: _repair,
}
"""RETIRED has no rule: only a person brings a GPU back."""


def _quarantine(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    """Return the move to QUARANTINED by condemning evidence, by measured evidence's score, or by flapping, else None.

    Reports of tenants never quarantine.
    """
    # Condemning evidence comes first: it moves a GPU at any age, a score or flapping only while they are fresh (I26).
    condemned = _condemned(gpu, now_ms)
    if condemned is not None:
        return condemned
    score, line = weighed(gpu, policy, now_ms), policy.score.quarantine_line
    measured = _measured(gpu, score)
    if score.measured_value < line and _is_fresh(gpu, measured, now_ms, policy):
        words = f"score {score.measured_value:.1f} is under {line:g}"
        return _to_quarantine(gpu, MoveReason.LOW_SCORE, now_ms, measured, words)
    falls = _falls(gpu, now_ms, policy)
    if len(falls) < policy.standing.flap_moves or _is_stale(falls[-1].at_ms, now_ms, policy):
        return None
    # A fall cites all that weighed. What a tenant reported is no cause of a quarantine.
    reported = _reported(gpu)
    fallen = dict.fromkeys(evidence_id for fall in falls for evidence_id in fall.evidence_ids)
    cited = tuple(evidence_id for evidence_id in fallen if evidence_id not in reported)
    words = f"fell to SUSPECT {len(falls)} times in {policy.standing.flap_window_s / DAY_S:g} days"
    return _to_quarantine(gpu, MoveReason.FLAPPING, now_ms, cited, words)


def _condemned(gpu: GpuCase, now_ms: int) -> Move | None:
    found = condemning_of(gpu)
    if not found:
        return None
    words = "; ".join(each.summary for each in found)
    return _to_quarantine(gpu, MoveReason.CONDEMNED, now_ms, tuple(each.id for each in found), words)


def _to_quarantine(
    gpu: GpuCase, reason: MoveReason, now_ms: int, evidence_ids: tuple[EvidenceId, ...] = (), text: str = ""
) -> Move:
    return move_to(
        gpu,
        Standing.QUARANTINED,
        reason,
        now_ms,
        evidence_ids=evidence_ids,
        return_to=return_to_of(gpu),
        text=text,
    )


def _falls(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> list[Move]:
    """Return the falls to SUSPECT that count as flapping.

    Such a fall is by measured evidence, not all of it dismissed. It is later than any person's move, and later than the
    last return out of a quarantine or a repair. A passed burn-in of a SUSPECT GPU does not restart the count: it counts
    faults that work causes and no burn-in shows.
    """
    low_scores = [
        move for move in gpu.moves if move.to_standing is Standing.SUSPECT and move.reason is MoveReason.LOW_SCORE
    ]
    if not low_scores:
        return []
    anew = [move.at_ms for move in gpu.moves if move.actor != RULE or move.from_standing in _QUARANTINED_OR_IN_REPAIR]
    anew_ms = max([*anew, now_ms - _ms(policy.standing.flap_window_s)])
    void = {each.id for each in gpu.evidence if not counts(each)} | _reported(gpu)
    return [
        move
        for move in low_scores
        if anew_ms < move.at_ms <= now_ms and not (move.evidence_ids and void.issuperset(move.evidence_ids))
    ]


def _proves(burn_in: BurnInResult, gpu: GpuCase) -> bool:
    """Return whether the burn-in began after all that it has to answer was seen, and no repair began since (I11).

    Condemning evidence is answered by a burn-in that began after it, also where the evidence came late. Anything else
    that took the GPU out (a low score, flapping, a person) is answered by a burn-in that began since.
    """
    if condemning_of(gpu):  # it did not test what condemns
        return False
    against = [each.last_seen_ms + 1 for each in gpu.evidence if _is_adverse(each)]
    repairs = [repair.began_ms for repair in gpu.repairs]
    is_condemned = bool(against) and _reason_of_standing(gpu) is MoveReason.CONDEMNED
    return burn_in.began_ms >= max([*against, *repairs, *([] if is_condemned else [gpu.since_ms])])


def _reason_of_standing(gpu: GpuCase) -> MoveReason | None:
    """Return why the GPU came to its standing; None where its past does not have that move."""
    newest = gpu.moves[-1] if gpu.moves else None
    return newest.reason if newest is not None and newest.to_standing is gpu.standing else None


def _is_adverse(evidence: Evidence) -> bool:
    """Return whether it condemns, or did before some proof."""
    return is_condemning(evidence)


def _newest_burn_in(gpu: GpuCase) -> BurnInResult | None:
    return max(gpu.burn_ins, key=lambda result: (result.ended_ms, result.began_ms), default=None)


def clean_since_ms(gpu: GpuCase) -> int:
    """Return since when this probation has seen nothing of warning or worse: each such finding restarts it."""
    seen = (
        each.last_seen_ms
        for each in gpu.evidence
        if each.severity >= Severity.WARNING and counts(each) and each.gpu_uuid is not None
    )
    return max([gpu.since_ms, *seen])


def _is_fresh(gpu: GpuCase, weighing: tuple[EvidenceId, ...], now_ms: int, policy: HealthPolicy) -> bool:
    """Return whether any evidence that lowers the score was seen recently enough to act on (I26)."""
    return any(not _is_stale(each.last_seen_ms, now_ms, policy) for each in gpu.evidence if each.id in weighing)


def _is_stale(at_ms: int, now_ms: int, policy: HealthPolicy) -> bool:
    return now_ms - at_ms > _ms(policy.evidence.stale_action_s)


def _measured(gpu: GpuCase, score: Weighed) -> tuple[EvidenceId, ...]:
    measured = {each.id for each in gpu.evidence if each.trust is Trust.MEASURED}
    return tuple(evidence_id for evidence_id, _ in score.shares if evidence_id in measured)


def _reported(gpu: GpuCase) -> set[EvidenceId]:
    return {each.id for each in gpu.evidence if each.trust is Trust.REPORTED}


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
