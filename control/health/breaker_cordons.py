"""Cordons of GPUs whose results may be wrong, and which the breaker holds back.

Everything else that the breaker holds back leaves admission as it was, and is a proposal
(``control.health.proposals``). Such a cordon stands as long as the rules would take the GPU out, and no cap limits it.
One whose code is ``CORRECTNESS`` also has the GPU's attempt evacuated, as I10 allows: the rules would quarantine the
GPU. A GPU that they would only make SUSPECT keeps its work.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import exists, select

from control.core.unit_of_work import UnitOfWork
from control.fleet import cordons
from health.standing.gpu_case import Move
from muster.db.models import Cordon, Gpu
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing

FORMER: Final = "quarantine_held_back"
"""The code under which the release before cordoned every GPU whose quarantine waited. Such cordons end."""
CORRECTNESS: Final = "correctness_at_risk"
IN_DOUBT: Final = "correctness_in_doubt"
_CODES: Final = (FORMER, CORRECTNESS, IN_DOUBT)

MAY_COMPUTE_WRONG: Final = exists().where(
    Cordon.gpu_uuid == Gpu.uuid, Cordon.reason_code == CORRECTNESS, Cordon.released_at.is_(None)
)
"""Condition on a GPU: measured evidence threatens correctness, and the breaker holds its quarantine back."""


def keep_correctness_cordons(unit: UnitOfWork, gpus: Sequence[Gpu], proposed: Mapping[GpuUuid, Move]) -> None:
    """Cordon exactly the GPUs among ``gpus`` (locked) with a proposed move that threatens correctness."""
    standing = select(Cordon).where(
        Cordon.gpu_uuid.in_([gpu.uuid for gpu in gpus]),
        Cordon.reason_code.in_(_CODES),
        Cordon.released_at.is_(None),
    )
    wanted = {uuid: _code(move) for uuid, move in proposed.items() if move.threatens_correctness}
    kept: set[GpuUuid] = set()
    for cordon in unit.session.scalars(standing.order_by(Cordon.id)):
        if cordon.gpu_uuid is not None and wanted.get(cordon.gpu_uuid) == cordon.reason_code:
            kept.add(cordon.gpu_uuid)
        else:
            cordons.end(unit, cordon, cordon.reason)
    for uuid in sorted(wanted.keys() - kept):
        move = proposed[uuid]
        words = f"its move to {move.to_standing} waits for the breaker: {move.text}"
        cordons.stand(unit, wanted[uuid], words, gpu_uuid=uuid)


def cordoned_gpus(unit: UnitOfWork) -> Sequence[GpuUuid]:
    """Return the GPUs that such a cordon keeps from new work, in id order."""
    standing = select(Cordon.gpu_uuid).where(Cordon.reason_code.in_(_CODES), Cordon.released_at.is_(None))
    return sorted(GpuUuid(uuid) for uuid in unit.session.scalars(standing.distinct()) if uuid is not None)


def _code(move: Move) -> str:
    return CORRECTNESS if move.to_standing is Standing.QUARANTINED else IN_DOUBT
