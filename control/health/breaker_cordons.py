"""Placement holds: a GPU whose quarantine waits for the breaker takes nothing new meanwhile.

A hold is a cordon of the judge's, which no cap limits: it stands as long as the rules would quarantine the GPU. One
whose code is ``CORRECTNESS`` also has the GPU's attempt evacuated, as I10 allows.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import exists, select

from control.core.unit_of_work import UnitOfWork
from control.fleet import cordons
from health.standing.gpu_case import Move
from muster.db.models import Cordon, Gpu
from muster.domain.ids import GpuUuid

PROPOSED_QUARANTINE: Final = "quarantine_held_back"
CORRECTNESS: Final = "correctness_at_risk"
_PLACEMENT_CODES: Final = (PROPOSED_QUARANTINE, CORRECTNESS)

MAY_COMPUTE_WRONG: Final = exists().where(
    Cordon.gpu_uuid == Gpu.uuid, Cordon.reason_code == CORRECTNESS, Cordon.released_at.is_(None)
)
"""Condition on a GPU: measured evidence threatens correctness, and the breaker holds its quarantine back."""


def keep_holds(unit: UnitOfWork, gpus: Sequence[Gpu], proposed: Mapping[GpuUuid, Move]) -> None:
    """Hold exactly the GPUs among ``gpus`` (locked) whose quarantine is held back; closing a scope ends the holds."""
    standing = select(Cordon).where(
        Cordon.gpu_uuid.in_([gpu.uuid for gpu in gpus]),
        Cordon.reason_code.in_(_PLACEMENT_CODES),
        Cordon.released_at.is_(None),
    )
    wanted = {uuid: _code(move) for uuid, move in proposed.items()}
    kept: set[GpuUuid] = set()
    for cordon in unit.session.scalars(standing.order_by(Cordon.id)):
        if cordon.gpu_uuid is not None and wanted.get(cordon.gpu_uuid) == cordon.reason_code:
            kept.add(cordon.gpu_uuid)
        else:
            cordons.end(unit, cordon, cordon.reason)
    for uuid in sorted(proposed.keys() - kept):
        move = proposed[uuid]
        cordons.stand(unit, _code(move), f"its quarantine waits for the breaker: {move.text}", gpu_uuid=uuid)


def cordoned_gpus(unit: UnitOfWork) -> Sequence[GpuUuid]:
    """Return the GPUs whose quarantine waits for the breaker, in id order."""
    standing = select(Cordon.gpu_uuid).where(Cordon.reason_code.in_(_PLACEMENT_CODES), Cordon.released_at.is_(None))
    return sorted(GpuUuid(uuid) for uuid in unit.session.scalars(standing.distinct()) if uuid is not None)


def _code(move: Move) -> str:
    return CORRECTNESS if move.threatens_correctness else PROPOSED_QUARANTINE
