"""Metering of ended attempts: the energy is read from the counters' history once, and stored in the attempt's row.

A page that shows a job then reads no history. Agents send readings with some delay, so the last minutes are awaited; an
agent that was offline for longer leaves those seconds unmetered, and the attempt states how many were metered.
"""

from dataclasses import asdict
from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy import select

from control.attempts.attempts import lock_attempt
from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from control.jobs.job_energy import AttemptEnergy, ended_energy, unread_energy
from muster.db.models import Attempt
from muster.domain.errors import UnavailableError
from muster.domain.ids import AttemptId
from muster.domain.principals import system_principal

RECORD: Final = declare_action("energy.record")
SETTLED_AFTER: Final = timedelta(minutes=3)
BATCH: Final = 8
_TRIED_FOR: Final = timedelta(hours=6)
_PRINCIPAL: Final = system_principal("energy")
_log = structlog.get_logger(__name__)


def keep_energy_once(units: UnitOfWorkFactory, *, batch: int = BATCH) -> int:
    """Meter at most ``batch`` of the attempts that have ended, the newest first. Return how many. It leaves no event.

    An attempt whose history cannot be read is stored as unread, so that it blocks no other.
    """
    with units.begin(_PRINCIPAL, RECORD, quiet=True) as unit:
        query = select(Attempt.id).where(
            Attempt.energy.is_(None),
            Attempt.claimed_at.is_not(None),
            Attempt.ended_at < unit.now - SETTLED_AFTER,
        )
        found = unit.session.scalars(query.order_by(Attempt.ended_at.desc()).limit(batch)).all()
    num_kept = 0
    for attempt_id in found:
        try:
            with units.begin(_PRINCIPAL, RECORD, quiet=True) as unit:  # the long reading, under no lock
                energy = ended_energy(unit, unit.session.get_one(Attempt, attempt_id))
            _keep(units, attempt_id, energy)
            num_kept += 1
        except Exception as fault:  # noqa: BLE001  # whatever is wrong with one is not to stop the others
            _log.warning("energy_unread", attempt_id=attempt_id, fault=f"{type(fault).__name__}: {fault}")
            num_kept += _keep_unread(units, attempt_id, is_to_pass=isinstance(fault, UnavailableError))
    return num_kept


def _keep(units: UnitOfWorkFactory, attempt_id: AttemptId, energy: AttemptEnergy) -> None:
    with units.begin(_PRINCIPAL, RECORD, quiet=True) as unit:
        lock_attempt(unit, attempt_id).attempt.energy = asdict(energy)


def _keep_unread(units: UnitOfWorkFactory, attempt_id: AttemptId, *, is_to_pass: bool) -> bool:
    """Store the attempt as unread.

    ``is_to_pass``: the database did not answer in time, so try again for a limited time.
    """
    with units.begin(_PRINCIPAL, RECORD, quiet=True) as unit:
        attempt = unit.session.get_one(Attempt, attempt_id)
        is_young = attempt.ended_at is not None and unit.now - attempt.ended_at < _TRIED_FOR
        if is_to_pass and is_young:
            return False
        energy = unread_energy(unit, attempt)
    _keep(units, attempt_id, energy)
    return True
