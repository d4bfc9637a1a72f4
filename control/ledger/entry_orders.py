"""Orders of a list of the ledger's entries."""

from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from typing import Final

from sqlalchemy import func

from control.core.paging import Sort, SortKey, by_time, number_in, signed_number_in
from muster.db.models import LedgerEntry

_ID: Final = SortKey(LedgerEntry.id, attrgetter("id"), number_in)
ENTRY_KEYS: Final[Mapping[str, SortKey]] = {
    "hour": SortKey(LedgerEntry.hour, attrgetter("hour"), datetime.fromisoformat),
    "account": SortKey(LedgerEntry.account, attrgetter("account")),
    "cause": SortKey(LedgerEntry.cause, attrgetter("cause")),
    "job": SortKey(func.coalesce(LedgerEntry.job_id, ""), lambda found: found.job_id or ""),
    "gpu_minutes": SortKey(LedgerEntry.num_ms, attrgetter("num_ms"), signed_number_in),
    "revision": SortKey(LedgerEntry.revision, attrgetter("revision"), number_in),
}
"""What a list of entries may be in order by; milliseconds are negative in corrections."""
ENTRY_SORTS: Final = by_time(ENTRY_KEYS["hour"], _ID)


def entry_sort(name: str, *, is_descending: bool) -> Sort:
    """Return the order of entries by one of ``ENTRY_KEYS``."""
    return Sort((ENTRY_KEYS[name], _ID), is_descending)
