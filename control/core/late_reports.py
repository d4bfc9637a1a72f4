"""Reports that come long after what they are about: the hours that they change are computed again, some time later.

Some time, since a host that was offline sends a whole hour in many batches: they cause one computation.
"""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import text

from control.core.unit_of_work import UnitOfWork

LATE: Final = timedelta(minutes=15)
"""What is reported sooner than this comes before the hour is first computed, or before it is closed."""
WAIT: Final = timedelta(minutes=15)
_DUE: Final = text("""
UPDATE ledger_hours SET due_at = :due_at
WHERE hour >= date_trunc('hour', CAST(:since AS timestamptz), 'UTC') AND hour <= :until
    AND coalesce(due_at, 'infinity') > :due_at
""")


def note_late(unit: UnitOfWork, since: datetime, until: datetime | None = None) -> None:
    """Have the hours from ``since`` to ``until`` computed again; None: to now. Of a moment ago it does nothing."""
    if unit.now - since > LATE:
        unit.session.execute(_DUE, {"since": since, "until": until or unit.now, "due_at": unit.now + WAIT})
