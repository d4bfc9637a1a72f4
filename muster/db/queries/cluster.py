"""The cluster's own row: its fences and its epoch."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import func, update
from sqlalchemy.orm import Session

from muster.db.models import Cluster
from muster.db.pipeline.pg_pipeline import Query
from muster.domain.ids import Fence, compose_fence

NEXT_FENCE: Final[Query] = (
    "UPDATE cluster SET fence_serial = fence_serial + 1 WHERE id = 1 RETURNING epoch, fence_serial",
    {},
)
"""Query for ``node_filter_of``. It locks the cluster's row until the transaction ends."""


def node_filter_of(rows: Sequence[Any]) -> Fence:
    """Return the fence in the answer of ``NEXT_FENCE``: it is above every earlier one (I2)."""
    return compose_fence(rows[0].epoch, rows[0].fence_serial)


def raise_epoch(session: Session, *, at_least: int = 0, serial: int = 0) -> int:
    """Raise the epoch after a restore from a backup, so that later fences are above all earlier ones.

    Return the epoch.

    The next fence is ``serial`` + 1 in it.
    """
    statement = (
        update(Cluster)
        .where(Cluster.id == 1)
        .values(epoch=func.greatest(Cluster.epoch + 1, at_least), fence_serial=serial)
        .returning(Cluster.epoch)
        .execution_options(synchronize_session=False)
    )
    return session.execute(statement).scalar_one()
