"""How much likelier each weak GPU is to end a gang than a sound one: from its score, and its board's quarantines."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, func, literal_column, or_, select
from sqlalchemy.orm import Session

from muster.db.models import Gpu, GpuStandingChange
from muster.domain.ids import GpuUuid
from muster.domain.placement_policy import HazardPolicy
from muster.domain.states import Standing

_QUARANTINED: Final[ColumnElement[Standing]] = literal_column(f"'{Standing.QUARANTINED.value}'")
"""A constant: with a parameter a plan that PostgreSQL keeps reads all moves, not the index of these."""


def excess_failures(session: Session, now: datetime, policy: HazardPolicy) -> Mapping[GpuUuid, int]:
    """In 1,000,000 hours, of each GPU that is not sound. History follows the board serial, where there is one."""
    quarantines = _quarantines_by_board(session, now - timedelta(seconds=policy.history_s))
    board = func.coalesce(Gpu.serial, Gpu.uuid)
    is_weak = Gpu.score < policy.weak_below_score
    is_weak = or_(is_weak, board.in_(list(quarantines))) if quarantines else is_weak
    found = {
        uuid: policy.failures_in_million_h(score, quarantines[key])
        for uuid, score, key in session.execute(select(Gpu.uuid, Gpu.score, board).where(is_weak))
    }
    return {uuid: failures for uuid, failures in found.items() if failures}


def _quarantines_by_board(session: Session, since: datetime) -> Counter[str]:
    board = func.coalesce(Gpu.serial, Gpu.uuid)
    query = (
        select(board, func.count())
        .select_from(GpuStandingChange)
        .join(Gpu, Gpu.uuid == GpuStandingChange.gpu_uuid)
        .where(GpuStandingChange.target == _QUARANTINED, GpuStandingChange.at > since)
        .group_by(board)
    )
    return Counter({key: number for key, number in session.execute(query)})  # noqa: C416  # rows are no pairs to mypy
