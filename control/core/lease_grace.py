"""Lease grace: no host is blamed for an outage of the control plane itself.

Leases are counted from the later of a host's last heartbeat and the time since which the API takes heartbeats again:

    10:00:00   last heartbeat of a host, last beat of the API
    10:05:00   the API is back: accepting since 10:05:00, so the host's lease counts from there
"""

from datetime import timedelta
from typing import Final

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Cluster
from muster.domain.times import to_ms

API_SILENCE: Final = timedelta(seconds=30)
"""A longer gap between the API's own beats counts as an outage: then no lease ends for a while."""


def lease_grace_since_ms(unit: UnitOfWork) -> int:
    """Return since when heartbeats are taken without a gap; now, while the API itself is silent."""
    cluster = unit.session.scalars(select(Cluster)).one()
    if cluster.api_alive_at is None or unit.now - cluster.api_alive_at > API_SILENCE:
        return to_ms(unit.now)
    return to_ms(cluster.accepts_heartbeats_since)
