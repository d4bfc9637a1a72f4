"""One GPU with all facts that an operator needs: score, evidence, conditions of its return, and its running job."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import select

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time, number_in
from control.core.records import records_of
from control.core.unit_of_work import UnitOfWork
from control.evidence.rows import BURN_INS_REMEMBERED, MOVES_REMEMBERED, REMEMBERED, case_from, evidence_of
from control.evidence.types import EvidenceRecord, StandingChangeRecord
from control.fleet.gpu_admission import TierAdmission, admission_of
from control.fleet.read import GPU, GpuView, Holder, Place
from control.fleet.types import CordonRecord, GpuRecord, OverrideRecord, ProposalRecord, RepairRecord
from control.health.cases import cases_of
from control.health.repairs import REPAIRS_REMEMBERED, with_repairs
from control.health.signal_ages import Signals, signals_of
from control.incidents.read import IncidentRecord
from control.policy.policies import active_policy, stored_policy
from health.evidence.proofs import condemns
from health.evidence.state import is_open
from health.remedy.remedy import Remedy, remedy_of
from health.scoring.score import Score
from health.scoring.unweighted import why_no_points
from health.standing.gpu_case import GpuCase, Move, proofs_of, score_of
from health.standing.standing import decide
from muster.db.models import EvidenceRow, Gpu, GpuStandingChange
from muster.domain.errors import NotFoundError
from muster.domain.evidence.findings import Evidence
from muster.domain.evidence.repairs import known_verbs
from muster.domain.gpu.effective_standing import effective_standing
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.health import HealthPolicy
from muster.domain.principals import Permission
from muster.domain.states import EvidenceState, Standing
from muster.domain.times import to_ms

MOVES_SHOWN: Final = 10
REPAIRS_SHOWN: Final = 10
EVIDENCE_SHOWN: Final = 50
MOVE_SORTS: Final = by_time(SortKey(GpuStandingChange.id, attrgetter("id"), number_in))
EVIDENCE_SORTS: Final = by_time(SortKey(EvidenceRow.id, attrgetter("row.id")))


@dataclass(frozen=True, slots=True)
class WeighedEvidence:
    """One piece of evidence and the ``points`` that it takes off the score now.

    ``is_open``: a standing fault whose end is not observed yet. ``why_no_points``: the reason as text; None where it
    takes points off.
    """

    row: EvidenceRecord
    evidence: Evidence
    points: float
    is_condemning: bool
    is_open: bool
    why_no_points: str | None


@dataclass(frozen=True, slots=True)
class GpuDetail:
    """Everything about one GPU. ``evidence`` and ``moves`` have the newest first.

    ``admission``: to each tier, with the condition that would admit it. ``remedy``: the one that is due.
    ``attempts_max``: repairs of one fault group that its board gets. ``proposed``: a move that the rules make next, or
    that waits for a person to close a scope of the breaker. ``breaker_proposals``: the proposals about it and its node.
    ``signals``: the age of each group. ``incidents``: the open ones about it, its node, or a breaker that holds it
    back.
    """

    gpu: GpuRecord
    node: Place
    score: Score
    standing_since: datetime | None
    evidence: Sequence[WeighedEvidence]
    admission: Sequence[TierAdmission]
    proposed: Move | None
    breaker_proposals: Sequence[ProposalRecord]
    remedy: Remedy | None
    attempts_max: int
    overrides: Sequence[OverrideRecord]
    cordons: Sequence[CordonRecord]
    holder: Holder | None
    repairs: Sequence[RepairRecord]
    moves: Sequence[StandingChangeRecord]
    signals: Signals
    incidents: Sequence[IncidentRecord]

    @property
    def override(self) -> Standing | None:
        """The newest standing in force that a person has set."""
        return self.overrides[0].standing if self.overrides else None

    @property
    def effective_standing(self) -> Standing:
        return effective_standing(self.gpu.standing, self.override)


def query_of(uuid: GpuUuid | None) -> dict[str, Any]:
    """Return the parameters of ``control.fleet.read.GPU``, except ``now``."""
    return {
        "uuid": uuid,
        "remembered": REMEMBERED,
        "num_shown": EVIDENCE_SHOWN,
        "num_repairs": REPAIRS_REMEMBERED,
        "num_moves": MOVES_REMEMBERED,
        "num_burn_ins": BURN_INS_REMEMBERED,
    }


def detail_of(unit: UnitOfWork, uuid: GpuUuid) -> GpuDetail:
    """Return the GPU's details. Raises ``NotFoundError`` where there is no such GPU."""
    unit.principal.require(Permission.GPU_READ)
    unit.session.flush()
    return detail_from(GPU.ask(unit.session, {**query_of(uuid), "now": unit.now}), unit.now)


def detail_from(found: GpuView | None, now: datetime) -> GpuDetail:
    """Return what the rules conclude of it at ``now``. Raises ``NotFoundError`` where nothing was found."""
    if found is None:
        raise NotFoundError("there is no such GPU")
    case = _case_of(found)
    whole_policy, now_ms = _policy_of(found), to_ms(now)
    policy = whole_policy.health
    score = score_of(case, policy, now_ms)
    return GpuDetail(
        gpu=found.gpu,
        node=found.node,
        score=score,
        standing_since=found.moves[0].at if found.moves else None,
        evidence=_weighed_by(case, score, found.shown, policy, now_ms),
        admission=admission_of(found, case, whole_policy, now_ms),
        proposed=decide(case, now_ms, policy),
        breaker_proposals=found.proposals,
        remedy=remedy_of(case, known_verbs(found.node.repair_verbs), now_ms, policy),
        attempts_max=policy.repair.attempts_max,
        overrides=found.overrides,
        cordons=found.cordons,
        holder=found.holder,
        repairs=found.repairs[:REPAIRS_SHOWN],
        moves=found.moves[:MOVES_SHOWN],
        signals=signals_of(found, policy.detectors.freshness, now),
        incidents=found.incidents,
    )


def _case_of(found: GpuView) -> GpuCase:
    evidence = map(evidence_of, found.evidence)
    case = case_from(found.gpu, evidence, found.moves, found.burn_ins, found.node.contact, found.abandoned_at)
    return with_repairs(case, found.repairs)


def _policy_of(found: GpuView) -> Policy:
    return DEFAULT_POLICY if found.policy is None else stored_policy(found.policy.version, bytes(found.policy.document))


def moves_of(unit: UnitOfWork, uuid: GpuUuid, part: Part, span: Span = ALWAYS) -> Sequence[StandingChangeRecord]:
    """Return the moves of its standing, the newest first unless ``part`` says otherwise.

    Raises:
        NotFoundError: there is no such GPU.
    """
    unit.principal.require(Permission.GPU_READ)
    require_there(unit, uuid)
    query = select(GpuStandingChange).where(GpuStandingChange.gpu_uuid == uuid, *span.conditions(GpuStandingChange.at))
    rows = unit.session.scalars(part.of(query, MOVE_SORTS[TimeOrder.NEWEST]))
    return records_of(rows, StandingChangeRecord)


@dataclass(frozen=True, slots=True)
class EvidenceFilter:
    """Conditions on evidence; None and empty set no condition.

    ``detector``: what its detector's name begins with. ``span``: in which it was last seen.
    """

    states: Sequence[EvidenceState] = ()
    detector: str | None = None
    span: Span = ALWAYS


def evidence_about_gpu(
    unit: UnitOfWork, uuid: GpuUuid, wanted: EvidenceFilter, part: Part
) -> Sequence[WeighedEvidence]:
    """Return the evidence about it, the newest first unless ``part`` says otherwise.

    Raises:
        NotFoundError: there is no such GPU.
    """
    unit.principal.require(Permission.GPU_READ)
    case = cases_of(unit, [require_there(unit, uuid)])[uuid]
    query = select(EvidenceRow).where(EvidenceRow.gpu_uuid == uuid, *wanted.span.conditions(EvidenceRow.last_seen_at))
    if wanted.states:
        query = query.where(EvidenceRow.state.in_(wanted.states))
    if wanted.detector is not None:
        query = query.where(EvidenceRow.detector.startswith(wanted.detector, autoescape=True))
    query = part.of(query, EVIDENCE_SORTS[TimeOrder.NEWEST])
    policy, now_ms = active_policy(unit.session).health, to_ms(unit.now)
    rows = records_of(unit.session.scalars(query), EvidenceRecord)
    return _weighed_by(case, score_of(case, policy, now_ms), rows, policy, now_ms)


def _weighed_by(
    case: GpuCase,
    score: Score,
    rows: Sequence[EvidenceRecord],
    policy: HealthPolicy,
    now_ms: int,
) -> list[WeighedEvidence]:
    shares, proofs = dict(score.shares), proofs_of(case)
    told = {row.id: evidence_of(row) for row in rows}
    why = why_no_points(told.values(), score, policy, now_ms, proofs)
    return [
        WeighedEvidence(
            row=row,
            evidence=told[row.id],
            points=shares.get(row.id, 0.0),
            is_condemning=condemns(told[row.id], proofs),
            is_open=is_open(told[row.id]),
            why_no_points=why.get(row.id),
        )
        for row in rows
    ]


def require_there(unit: UnitOfWork, uuid: GpuUuid) -> Gpu:
    """Return the GPU. Raises ``NotFoundError`` where there is none."""
    gpu = unit.session.get(Gpu, uuid)
    if gpu is None:
        raise NotFoundError("there is no such GPU")
    return gpu


def known_uuid(unit: UnitOfWork, uuid: GpuUuid) -> GpuUuid:
    """Return ``uuid``. Raises ``NotFoundError`` where no GPU has it."""
    return require_there(unit, uuid).uuid
