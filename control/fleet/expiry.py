"""Expiry of cordons and overrides that a person set with an end.

Neither is in force from its end on, whether or not this has run. This round stores the event, as of a release, and
wakes the scheduler.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeVar

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, UnitOfWorkFactory, declare_action
from control.fleet import cordons
from muster.db.models import Cordon, GpuOverride
from muster.domain.principals import Permission, Principal

EXPIRE: Final = declare_action("system.expire")
AT_ONCE: Final = 500
"""Maximum number in one unit. The others wait for the next round."""
WHY: Final = "its end has come"
Row = TypeVar("Row", Cordon, GpuOverride)


def expire(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Run one round. Return how many have ended."""
    with units.read() as session:
        if not _is_any_due(session, units.clock()):
            return 0
    with units.begin(principal, EXPIRE) as unit:
        return expire_due(unit)


def expire_due(unit: UnitOfWork) -> int:
    unit.principal.require(Permission.SYSTEM_RUN)
    ended = _locked(unit, _due_cordons(unit.now))
    for cordon in ended:
        cordons.end(unit, cordon, WHY, at=cordon.until)
        unit.audit("cordon.expire", "cordon", cordon.id, reason=WHY)
    overrides = _locked(unit, _due_overrides(unit.now))
    for override in overrides:
        override.ended_at = override.until
        detail = {"override_id": override.id, "standing": override.standing, "reason": WHY}
        unit.emit("gpu.override_expired", "gpu", override.gpu_uuid, payload=detail)
        unit.audit("gpu.override.expire", "gpu", override.gpu_uuid, reason=WHY, detail=detail)
    if overrides:
        unit.wake(SCHEDULER_CHANNEL)
    return len(ended) + len(overrides)


def _is_any_due(session: Session, now: datetime) -> bool:
    return bool(session.scalar(select(or_(_due_cordons(now).exists(), _due_overrides(now).exists()))))


def _due_cordons(now: datetime) -> Select[Cordon]:
    return select(Cordon).where(Cordon.released_at.is_(None), Cordon.until <= now).order_by(Cordon.id)


def _due_overrides(now: datetime) -> Select[GpuOverride]:
    ended = GpuOverride.ended_at
    return select(GpuOverride).where(ended.is_(None), GpuOverride.until <= now).order_by(GpuOverride.id)


def _locked(unit: UnitOfWork, due: Select[Row]) -> Sequence[Row]:
    return unit.session.scalars(due.limit(AT_ONCE).with_for_update(key_share=True, skip_locked=True)).all()
