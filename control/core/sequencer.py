"""The sequencer: committed events get gap-free positions, so a consumer that reads by position skips no late commit."""

from typing import Final

from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from muster.db.queries.sequences import lock_head, number_events
from muster.domain.principals import system_principal

ACTION: Final = declare_action("sequencer.sequence")
_PRINCIPAL: Final = system_principal("sequencer")
_UNSEQUENCED: Final = "SELECT EXISTS (SELECT FROM events WHERE position IS NULL) AS is_pending"


def has_unsequenced(units: UnitOfWorkFactory) -> bool:
    """Return whether a committed event has no position yet. Raises ``UnavailableError``."""
    return bool(units.ask(_UNSEQUENCED, {})[0].is_pending)


def sequence_once(units: UnitOfWorkFactory, *, batch: int = 1000) -> int:
    """Give positions to up to ``batch`` committed events and wake ``muster_sequenced``. Return how many.

    Safe in any number of processes: while one numbers, the others find nothing to do. A transaction that commits late
    gets later positions, whatever its events' time. Raises ``UnavailableError``.
    """
    with units.begin(_PRINCIPAL, ACTION, quiet=True) as unit:
        head = lock_head(unit.session, "events")
        numbered = 0 if head is None else number_events(unit.session, after=head.position, batch=batch)
        if head is not None and numbered:
            head.position += numbered
            head.updated_at = unit.now
            unit.wake("muster_sequenced")
    return numbered
