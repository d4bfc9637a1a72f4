"""One GPU with all that an operator asks about it: score, evidence, what would bring it back, who runs there."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import or_, select

from health.evidence import is_condemning, is_open
from health.gpu_case import GpuCase, Move, proof_ms_of, score_of
from health.outlook import Way, override_ends, ways_of
from health.score import Score
from health.standing import decide
from muster.db.models import (
    Allocation,
    AllocationGpu,
    Attempt,
    Cordon,
    EvidenceRow,
    Gpu,
    GpuOverride,
    GpuStandingChange,
    Job,
    Node,
    Repair,
)
from muster.domain.errors import NotFoundError
from muster.domain.evidence import Evidence
from muster.domain.ids import AttemptId, EvidenceId, GpuUuid, JobId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import AllocationState, Standing
from muster.services.judgement.moves import cases_of
from muster.services.judgement.repairs import repairs_about
from muster.services.judgement.rows import evidence_of
from muster.services.lives import to_ms
from muster.services.policies import active_policy
from muster.services.unit_of_work import UnitOfWork

MOVES_SHOWN: Final = 10
REPAIRS_SHOWN: Final = 10
EVIDENCE_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class WeighedEvidence:
    """``points``: what it takes off the score now. ``is_open``: a standing fault that nobody has seen to be over."""

    row: EvidenceRow
    points: float
    is_condemning: bool
    is_open: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the GPU. ``state`` is the allocation's: CLEANING when its programs have ended."""

    job_id: JobId
    job_name: str
    tenant_id: TenantId
    attempt_id: AttemptId
    attempt_number: int
    state: AllocationState


@dataclass(frozen=True, slots=True)
class GpuDetail:
    """``evidence`` and ``moves``: the newest first. ``ways``: what would change its standing for the better.

    ``proposed``: a move that the rules make next, or that waits for a person to close a scope of the breaker.
    """

    gpu: Gpu
    node: Node
    score: Score
    standing_since: datetime | None
    evidence: Sequence[WeighedEvidence]
    ways: Sequence[Way]
    proposed: Move | None
    overrides: Sequence[GpuOverride]
    cordons: Sequence[Cordon]
    holder: Holder | None
    repairs: Sequence[Repair]
    moves: Sequence[GpuStandingChange]


def detail_of(unit: UnitOfWork, uuid: GpuUuid) -> GpuDetail:
    """Raises ``NotFoundError``: there is no such GPU."""
    unit.principal.require(Permission.GPU_READ)
    session = unit.session
    session.flush()
    gpu, case = _gpu_and_case(unit, uuid)
    policy, now_ms = active_policy(session).health, to_ms(unit.now)
    moves = moves_of(unit, uuid, limit=MOVES_SHOWN)
    overrides = _overrides(unit, uuid)
    return GpuDetail(
        gpu=gpu,
        node=session.get_one(Node, gpu.node_id),
        score=score_of(case, policy, now_ms),
        standing_since=moves[0].at if moves else None,
        evidence=_weighed_by(unit, case, limit=EVIDENCE_SHOWN),
        ways=[*_ways_out(gpu, overrides), *ways_of(case, now_ms, policy)],
        proposed=decide(case, now_ms, policy),
        overrides=overrides,
        cordons=_cordons(unit, gpu),
        holder=_holder(unit, uuid),
        repairs=repairs_about(unit, gpu, limit=REPAIRS_SHOWN),
        moves=moves,
    )


def moves_of(unit: UnitOfWork, uuid: GpuUuid, *, limit: int, before: int | None = None) -> Sequence[GpuStandingChange]:
    """Every move of its standing, the newest first. ``before``: those older than that one.

    Raises:
        NotFoundError: there is no such GPU.
    """
    unit.principal.require(Permission.GPU_READ)
    require_there(unit, uuid)
    query = select(GpuStandingChange).where(GpuStandingChange.gpu_uuid == uuid)
    if before is not None:
        query = query.where(GpuStandingChange.id < before)
    return unit.session.scalars(query.order_by(GpuStandingChange.id.desc()).limit(limit)).all()


def evidence_about_gpu(
    unit: UnitOfWork, uuid: GpuUuid, *, limit: int, before: EvidenceId | None = None
) -> Sequence[WeighedEvidence]:
    """The newest first; ``before``: those older than that one. Raises ``NotFoundError``: there is no such GPU."""
    unit.principal.require(Permission.GPU_READ)
    return _weighed_by(unit, _gpu_and_case(unit, uuid)[1], limit=limit, before=before)


def _weighed_by(
    unit: UnitOfWork, case: GpuCase, *, limit: int, before: EvidenceId | None = None
) -> Sequence[WeighedEvidence]:
    shares = dict(score_of(case, active_policy(unit.session).health, to_ms(unit.now)).shares)
    query = (
        select(EvidenceRow).where(EvidenceRow.gpu_uuid == case.gpu_uuid).order_by(EvidenceRow.id.desc()).limit(limit)
    )
    if before is not None:
        query = query.where(EvidenceRow.id < before)
    return [_weighed(row, shares.get(row.id, 0.0), proof_ms_of(case)) for row in unit.session.scalars(query)]


def _gpu_and_case(unit: UnitOfWork, uuid: GpuUuid) -> tuple[Gpu, GpuCase]:
    gpu = require_there(unit, uuid)
    return gpu, cases_of(unit, [gpu])[uuid]


def require_there(unit: UnitOfWork, uuid: GpuUuid) -> Gpu:
    """Raises ``NotFoundError``: there is no such GPU."""
    gpu = unit.session.get(Gpu, uuid)
    if gpu is None:
        raise NotFoundError("there is no such GPU")
    return gpu


def _weighed(row: EvidenceRow, points: float, proof_ms: int | None) -> WeighedEvidence:
    evidence: Evidence = evidence_of(row)
    return WeighedEvidence(row, points, is_condemning(evidence, proof_ms), is_open(evidence))


def _ways_out(gpu: Gpu, overrides: Sequence[GpuOverride]) -> list[Way]:
    """Of the standing that a person has set, where it is one that takes nothing."""
    keeps_back = overrides and overrides[0].standing in {Standing.SUSPECT, Standing.QUARANTINED}
    return [override_ends(gpu.standing, to_ms(overrides[0].until))] if keeps_back else []


def _overrides(unit: UnitOfWork, uuid: GpuUuid) -> Sequence[GpuOverride]:
    """In force, the newest first: that one counts."""
    query = select(GpuOverride).where(
        GpuOverride.gpu_uuid == uuid, GpuOverride.ended_at.is_(None), GpuOverride.until > unit.now
    )
    return unit.session.scalars(query.order_by(GpuOverride.created_at.desc())).all()


def _cordons(unit: UnitOfWork, gpu: Gpu) -> Sequence[Cordon]:
    query = select(Cordon).where(
        or_(Cordon.gpu_uuid == gpu.uuid, Cordon.node_id == gpu.node_id),
        Cordon.released_at.is_(None),
        or_(Cordon.until.is_(None), Cordon.until > unit.now),
    )
    return unit.session.scalars(query.order_by(Cordon.created_at.desc(), Cordon.id)).all()


def _holder(unit: UnitOfWork, uuid: GpuUuid) -> Holder | None:
    query = (
        select(Job.id, Job.name, Job.tenant_id, Attempt.id, Attempt.number, AllocationGpu.state)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .join(Job, Job.id == Allocation.job_id)
        .where(
            AllocationGpu.gpu_uuid == uuid,
            AllocationGpu.state.in_([AllocationState.HELD, AllocationState.CLEANING]),
        )
    )
    row = unit.session.execute(query).first()
    return None if row is None else Holder(*row)
