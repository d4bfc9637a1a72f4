"""The cluster's own row: its fences and its epoch."""

from sqlalchemy import update
from sqlalchemy.orm import Session

from muster.db.models import Cluster
from muster.domain.ids import Fence, compose_fence


def next_fence(session: Session) -> Fence:
    """A fence above every earlier one (I2). Locks the cluster's row until the transaction ends."""
    statement = (
        update(Cluster)
        .where(Cluster.id == 1)
        .values(fence_serial=Cluster.fence_serial + 1)
        .returning(Cluster.epoch, Cluster.fence_serial)
        .execution_options(synchronize_session=False)
    )
    epoch, serial = session.execute(statement).one()
    return compose_fence(epoch, serial)


def raise_epoch(session: Session) -> int:
    """After a restore from a backup: fences given before it must stay below every later one. Returns the epoch."""
    statement = (
        update(Cluster)
        .where(Cluster.id == 1)
        .values(epoch=Cluster.epoch + 1, fence_serial=0)
        .returning(Cluster.epoch)
        .execution_options(synchronize_session=False)
    )
    return session.execute(statement).scalar_one()
