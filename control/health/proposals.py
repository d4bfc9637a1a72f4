"""Proposals: what rules would take from new work, and the circuit breaker holds back.

A proposal changes no admission. It is a row, so that a GPU's page and the breaker's list show it, and so that the
closing of a scope finds the GPUs that wait.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sqlalchemy import or_, select

from control.core.unit_of_work import UnitOfWork
from health.standing.account import Way
from muster.db.models import BreakerProposal, Gpu
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing

S = TypeVar("S", bound=str)
PROPOSED_AGAIN_MS: Final = 60_000
"""Interval after which something that the breaker held back is decided again."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One proposal. ``standing``: the one to which the GPU would move; None for a hold or a burn-in."""

    reason: str
    standing: Standing | None = None
    threatens_correctness: bool = False


def keep(unit: UnitOfWork, way: Way, subjects: Collection[S], wanted: Mapping[S, Proposal]) -> None:
    """Keep exactly ``wanted`` of this way about ``subjects``. The caller holds the subjects."""
    query = select(BreakerProposal).where(BreakerProposal.way == way, BreakerProposal.subject_id.in_(list(subjects)))
    known = {row.subject_id: row for row in unit.session.scalars(query)}
    for subject_id in sorted(known.keys() - wanted.keys()):
        unit.session.delete(known[subject_id])
        _report(unit, way, subject_id, "proposal_ended", known[subject_id].reason, known[subject_id].standing)
    for subject_id in sorted(wanted):
        proposal, row = wanted[subject_id], known.get(subject_id)
        if row is None:
            unit.session.add(
                BreakerProposal(
                    subject_id=subject_id,
                    way=way,
                    standing=proposal.standing,
                    reason=proposal.reason,
                    threatens_correctness=proposal.threatens_correctness,
                    proposed_at=unit.now,
                )
            )
            _report(unit, way, subject_id, "proposed", proposal.reason, proposal.standing)
        elif (row.standing, row.reason, row.threatens_correctness) != (
            proposal.standing,
            proposal.reason,
            proposal.threatens_correctness,
        ):
            is_other = row.standing != proposal.standing
            row.standing, row.reason = proposal.standing, proposal.reason
            row.threatens_correctness = proposal.threatens_correctness
            if is_other:
                _report(unit, way, subject_id, "proposed", proposal.reason, proposal.standing)


def of_way(unit: UnitOfWork, way: Way, subjects: Collection[str]) -> dict[str, str]:
    """Return the reasons of the proposals of this way about ``subjects``."""
    query = select(BreakerProposal.subject_id, BreakerProposal.reason).where(
        BreakerProposal.way == way, BreakerProposal.subject_id.in_(list(subjects))
    )
    return dict(unit.session.execute(query).all())


def waiting_gpus(unit: UnitOfWork) -> Sequence[GpuUuid]:
    """Return the GPUs about which there is a proposal of their own, in id order."""
    query = select(Gpu.uuid).join(BreakerProposal, BreakerProposal.subject_id == Gpu.uuid)
    return unit.session.scalars(query.distinct().order_by(Gpu.uuid)).all()


def proposed_gpus(unit: UnitOfWork) -> Sequence[GpuUuid]:
    """Return the GPUs that a proposal would keep from new work, of their own or of their node, in id order."""
    about = or_(BreakerProposal.subject_id == Gpu.uuid, BreakerProposal.subject_id == Gpu.node_id)
    query = select(Gpu.uuid).join(BreakerProposal, about).where(Gpu.standing != Standing.RETIRED)
    return unit.session.scalars(query.distinct().order_by(Gpu.uuid)).all()


def _report(unit: UnitOfWork, way: Way, subject_id: str, what: str, reason: str, standing: str | None) -> None:
    subject = "node" if way is Way.NODE_HOLD else "gpu"
    payload = {"way": way, "to": standing, "reason": reason}
    unit.emit(f"{subject}.{what}", subject, subject_id, payload=payload)
