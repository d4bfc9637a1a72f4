"""Hypothetical futures: conditions applied to one GPU's situation, by the very rules that judge it.

Pure. A condition is one act of a person or one thing that happens by itself; ``after`` returns the GPU's situation with
a set of them fulfilled, if nothing else is found meanwhile.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from health.evidence.state import counts, is_open
from health.standing import interventions
from health.standing.admission import AdmissionFacts
from health.standing.gpu_case import ALL_STAGES, BurnInResult, GpuCase, PastRepair, moved
from health.standing.proof_under_load import unproved
from health.standing.standing import MOVES_AT_ONCE, decide, is_reclaimable_only, next_evaluation_ms
from muster.domain.evidence.findings import Evidence, Severity
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import DAY_S, HealthPolicy
from muster.domain.states import NOTHING_RUNS, Contact, Standing

FORESEEN_MS: Final = int(400 * DAY_S * 1000)
"""Horizon of the rules' forecast: no evidence counts for longer under any accepted policy."""
_MAX_EVALUATIONS: Final = 64
_ANY_ACTOR: Final = "any person"


class Kind(StrEnum):
    """Kinds of conditions that can bring a GPU back, the cheapest to the operator first."""

    TIME = "time"
    CONTACT = "contact"
    CORDON = "cordon"
    OVERRIDE = "override"
    BURN_IN = "burn_in"
    DISMISSAL = "dismissal"
    MIG = "mig"
    REPAIR = "repair"
    REINSTATEMENT = "reinstatement"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. ``at_ms``: when it is fulfilled by itself; None where a person must act, or the time is unknown.

    ``subject_id``: the evidence to dismiss, the cordon or the override that has to end.
    """

    kind: Kind
    text: str
    at_ms: int | None = None
    subject_id: str | None = None

    @property
    def key(self) -> tuple[Kind, str | None]:
        """Return its identity, whatever its time."""
        return self.kind, self.subject_id


@dataclass(frozen=True, slots=True)
class Cordon:
    """A cordon in force. ``until_ms``: when it ends by itself, None: when it is released."""

    id: str
    reason: str
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SetStanding:
    """A person's standing over the GPU's own, in force until ``until_ms``."""

    id: str
    standing: Standing
    until_ms: int


@dataclass(frozen=True, slots=True)
class Situation:
    """One GPU with all that admission reads, except its holder: a running job is no obstacle."""

    gpu: GpuCase
    contact: Contact = Contact.LIVE
    cordons: tuple[Cordon, ...] = ()
    override: SetStanding | None = None
    is_mig_enabled: bool = False
    is_burning_in: bool = False
    is_reclaimable_only: bool = False

    @property
    def facts(self) -> AdmissionFacts:
        return AdmissionFacts(
            standing=self.gpu.standing,
            contact=self.contact,
            is_cordoned=bool(self.cordons),
            is_burning_in=self.is_burning_in,
            is_reclaimable_only=self.is_reclaimable_only,
            is_mig_enabled=self.is_mig_enabled,
            override=None if self.override is None else self.override.standing,
        )


def faults_that_stand(gpu: GpuCase, policy: HealthPolicy) -> tuple[Evidence, ...]:
    """Return the faults that the agent states repeatedly until they are seen to be over: they do not decay before.

    A rate is none: its end is not seen, it is no longer stated and decays.
    """
    standing = set(policy.evidence.standing_detectors)
    return tuple(
        each
        for each in gpu.evidence
        if each.detector in standing and not each.traits.ends_unseen and is_open(each) and counts(each)
    )


def after(situation: Situation, conditions: Collection[Condition], now_ms: int, policy: HealthPolicy) -> Situation:
    """Return the situation once all of ``conditions`` are fulfilled.

    The order is an operator's: first the conditions of the node and its places, then of the GPU's own standing, and
    time at the end. A condition that does not apply changes nothing.
    """
    until_ms = max((each.at_ms or now_ms for each in conditions if each.kind is Kind.TIME), default=now_ms)
    looks = foreseen(situation, conditions, now_ms, policy)
    _, found = next(looks)
    for at_ms, later in looks:
        if at_ms > until_ms:
            break
        found = later
    return found


def foreseen(
    situation: Situation, conditions: Collection[Condition], now_ms: int, policy: HealthPolicy
) -> Iterator[tuple[int, Situation]]:
    """Yield the situation with all ``conditions`` but time fulfilled, at each moment at which the rules decide again.

    Moments are wall clock, milliseconds. A fault that its agent still states is assumed to last.
    """
    placed = _around(situation, conditions)
    at_ms = max([now_ms, *(each.last_seen_ms + 1 for each in placed.gpu.evidence)])
    gpu = _lived(placed.gpu, conditions, at_ms, policy)
    last_ms = at_ms + FORESEEN_MS
    for _ in range(_MAX_EVALUATIONS):
        gpu = _settled(gpu, at_ms, policy)
        is_young = is_reclaimable_only(gpu.standing, gpu.since_ms, at_ms, policy)
        yield at_ms, replace(placed, gpu=gpu, is_reclaimable_only=is_young)
        next_ms = next_evaluation_ms(gpu, at_ms, policy)
        if next_ms is None or next_ms > last_ms:
            return
        at_ms = next_ms


def _around(situation: Situation, conditions: Collection[Condition]) -> Situation:
    kinds = {each.kind for each in conditions}
    ended = {each.subject_id for each in conditions}
    found = replace(situation, cordons=tuple(each for each in situation.cordons if each.id not in ended))
    if situation.override is not None and situation.override.id in ended:
        found = replace(found, override=None)
    if Kind.MIG in kinds:
        found = replace(found, is_mig_enabled=False)
    if Kind.BURN_IN in kinds:
        found = replace(found, is_burning_in=False)
    if Kind.CONTACT in kinds:
        found = replace(found, contact=Contact.LIVE, gpu=replace(found.gpu, has_contact=True))
    return found


def _lived(gpu: GpuCase, conditions: Collection[Condition], at_ms: int, policy: HealthPolicy) -> GpuCase:
    kinds = {each.kind for each in conditions}
    if Kind.REINSTATEMENT in kinds and gpu.standing is Standing.RETIRED:
        move = interventions.reinstate(gpu, person=_ANY_ACTOR, reason=_ANY_ACTOR, now_ms=at_ms)
        gpu = moved(gpu, move)
    if Kind.REPAIR in kinds:
        gpu = _repaired(gpu, at_ms, policy)
    # After the repair: faults that it did not end are assumed to last.
    gpu = _lasting(gpu, at_ms, policy)
    dismissed = frozenset(EvidenceId(each.subject_id or "") for each in conditions if each.kind is Kind.DISMISSAL)
    if dismissed:
        gpu = _dismissed(gpu, dismissed, at_ms, policy)
    gpu = _settled(gpu, at_ms, policy)
    if Kind.BURN_IN in kinds and gpu.standing not in NOTHING_RUNS:
        gpu = replace(gpu, burn_ins=(*gpu.burn_ins, BurnInResult(at_ms, at_ms, has_passed=True, covers=ALL_STAGES)))
    return gpu


def _repaired(gpu: GpuCase, at_ms: int, policy: HealthPolicy) -> GpuCase:
    """Return the GPU with all standing faults ended, and a repair in progress reported done."""
    over = {each.id for each in faults_that_stand(gpu, policy)}
    closed = (each.changed_to(replace(each, closed_at_ms=at_ms)) if each.id in over else each for each in gpu.evidence)
    gpu = replace(gpu, evidence=tuple(closed))
    if gpu.standing is not Standing.REPAIR:
        return gpu
    repair = PastRepair("", gpu.since_ms, at_ms, is_done=True)
    done = moved(gpu, interventions.finish_repair(gpu, actor=_ANY_ACTOR, now_ms=at_ms))
    return replace(done, repairs=(*gpu.repairs, repair))


def _lasting(gpu: GpuCase, at_ms: int, policy: HealthPolicy) -> GpuCase:
    """Return the GPU with standing faults seen for the whole foreseen time."""
    lasting = {each.id for each in faults_that_stand(gpu, policy)}
    if not lasting:
        return gpu
    last_ms = at_ms + FORESEEN_MS
    seen = (replace(each, last_seen_ms=last_ms) if each.id in lasting else each for each in gpu.evidence)
    return replace(gpu, evidence=tuple(seen))


def _dismissed(gpu: GpuCase, ids: frozenset[EvidenceId], at_ms: int, policy: HealthPolicy) -> GpuCase:
    move = interventions.dismiss(gpu, ids, person=_ANY_ACTOR, reason=_ANY_ACTOR, now_ms=at_ms, policy=policy)
    left = (replace(each, is_dismissed=True) if each.id in ids else each for each in gpu.evidence)
    gpu = replace(gpu, evidence=tuple(left))
    return gpu if move is None else moved(gpu, move)


def without_the_past(situation: Situation, now_ms: int, policy: HealthPolicy) -> Situation:
    """Return the situation without evidence that no rule reads any longer.

    Such evidence weighs nothing, does not condemn, lasts no longer, and no move cites it. Of the evidence that
    restarted a probation the newest alone is read, and stays.
    """
    gpu = situation.gpu
    looked_at = {evidence_id for move in gpu.moves for evidence_id in move.evidence_ids}
    looked_at |= {each.id for each in (*faults_that_stand(gpu, policy), *unproved(gpu, policy))}
    newest = max(filter(_counts_for_probation, gpu.evidence), key=lambda each: each.last_seen_ms, default=None)
    kept = (each for each in gpu.evidence if each is newest or each.id in looked_at or _may_matter(each, now_ms))
    return replace(situation, gpu=replace(gpu, evidence=tuple(kept)))


def _counts_for_probation(evidence: Evidence) -> bool:
    return evidence.severity >= Severity.WARNING and counts(evidence) and evidence.gpu_uuid is not None


def _may_matter(evidence: Evidence, now_ms: int) -> bool:
    if evidence.last_seen_ms >= now_ms:
        return True
    if evidence.is_dismissed or evidence.is_suspended or evidence.suppressed_by:
        return False
    return evidence.severity is Severity.CONDEMNING or evidence.last_seen_ms + evidence.counts_for_ms > now_ms


def _settled(gpu: GpuCase, at_ms: int, policy: HealthPolicy) -> GpuCase:
    """Return the GPU after all moves that the rules make at ``at_ms``, as if the breaker allowed each of them."""
    for _ in range(MOVES_AT_ONCE):
        move = decide(gpu, at_ms, policy)
        if move is None:
            break
        gpu = moved(gpu, move)
    return gpu
