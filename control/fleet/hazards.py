"""Recent quarantines of boards: like its score, they make a GPU likelier to end a gang than a sound one."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, func, literal_column, select
from sqlalchemy.orm import Session

from muster.db.models import Gpu, GpuStandingChange
from muster.domain.policy.placement import HazardPolicy
from muster.domain.states import Standing

_QUARANTINED: Final[ColumnElement[Standing]] = literal_column(f"'{Standing.QUARANTINED.value}'")
"""A constant: with a parameter, a cached plan of PostgreSQL reads all moves and not the index of these."""


def quarantines_by_board(session: Session, now: datetime, policy: HazardPolicy) -> Counter[str]:
    """Return the number by board, where it is not 0: by the board's serial, or the GPU's UUID where it reports none."""
    board = func.coalesce(Gpu.serial, Gpu.uuid)
    query = (
        select(board, func.count())
        .select_from(GpuStandingChange)
        .join(Gpu, Gpu.uuid == GpuStandingChange.gpu_uuid)
        .where(
            GpuStandingChange.target == _QUARANTINED, GpuStandingChange.at > now - timedelta(seconds=policy.history_s)
        )
        .group_by(board)
    )
    return Counter({key: number for key, number in session.execute(query)})  # noqa: C416  # rows are no pairs to mypy
