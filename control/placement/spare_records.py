"""Spares of the newest plan, as stored for the ledger: since when and until when each GPU was one."""

from collections.abc import Collection

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, declare_action
from muster.db.models import GpuSpare
from muster.domain.ids import GpuUuid
from muster.domain.principals import Permission

NOTE_SPARES = declare_action("spares.note")


def stored_spares(session: Session) -> frozenset[GpuUuid]:
    """Return the GPUs that are spares by the newest plan that was stored."""
    return frozenset(session.scalars(select(GpuSpare.gpu_uuid).where(GpuSpare.ended_at.is_(None))))


def note_spares(unit: UnitOfWork, spares: Collection[GpuUuid]) -> None:
    """Store the spares of a plan. A GPU that it keeps as before is left as it is."""
    unit.principal.require(Permission.SYSTEM_RUN)
    kept = GpuSpare.ended_at.is_(None)
    before = set(unit.session.scalars(select(GpuSpare.gpu_uuid).where(kept).with_for_update()))
    if ended := before.difference(spares):
        ends = update(GpuSpare).where(kept, GpuSpare.gpu_uuid.in_(ended), GpuSpare.began_at <= unit.now)
        unit.session.execute(ends.values(ended_at=unit.now))
    if begun := sorted(set(spares) - before):
        rows = [{"gpu_uuid": uuid, "began_at": unit.now} for uuid in begun]
        unit.session.execute(insert(GpuSpare).values(rows).on_conflict_do_nothing())  # another scheduler may lead now
