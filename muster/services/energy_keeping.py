"""Each attempt's energy is read from the counters' history once, when it has ended, and kept in its row.

Who shows a job then reads no history. Agents send what they read with some delay, so the last minutes are awaited; an
agent that was offline for longer leaves those seconds unmetered, and the attempt says how many were metered.
"""

from dataclasses import asdict
from datetime import timedelta
from typing import Final

from sqlalchemy import select

from muster.db.models import Attempt
from muster.domain.principals import system_principal
from muster.services.attempts import lock_attempt
from muster.services.job_energy import ended_energy
from muster.services.unit_of_work import UnitOfWorkFactory, declare_action

KEEP: Final = declare_action("energy.keep")
SETTLED_AFTER: Final = timedelta(minutes=3)
BATCH: Final = 8
_PRINCIPAL: Final = system_principal("energy")


def keep_energy_once(units: UnitOfWorkFactory, *, batch: int = BATCH) -> int:
    """Meter the attempts that ended the longest ago, at most ``batch``. How many. It leaves no event."""
    with units.begin(_PRINCIPAL, KEEP, quiet=True) as unit:
        query = select(Attempt.id).where(
            Attempt.energy.is_(None),
            Attempt.claimed_at.is_not(None),
            Attempt.ended_at < unit.now - SETTLED_AFTER,
        )
        found = unit.session.scalars(query.order_by(Attempt.ended_at).limit(batch)).all()
    for attempt_id in found:
        with units.begin(_PRINCIPAL, KEEP, quiet=True) as unit:  # the long reading, under no lock
            energy = ended_energy(unit, unit.session.get_one(Attempt, attempt_id))
        with units.begin(_PRINCIPAL, KEEP, quiet=True) as unit:
            lock_attempt(unit, attempt_id).attempt.energy = asdict(energy)
    return len(found)
