"""Probe responders by rack, as this process counted them a moment ago.

Each host of a fleet asks once a round, and the count reads the whole fleet: 12,500 hosts would count themselves 14
times a second. The caller leaves out a host that is away since then; a host that has just come adds itself.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from control.hosts.rack_pairs import racks_of
from health.pairwise.pair_probes import Racks
from muster.db.models import Node
from muster.domain.ids import NodeId

COUNTED_FOR: Final = timedelta(seconds=30)
"""Age of a count; a round has 15 minutes."""


@dataclass(frozen=True, slots=True)
class _Counted:
    at: datetime
    racks: dict[str, Sequence[NodeId]]


class ProbeResponders:
    """Racks of simulated hosts and of other hosts, which probe each other only. Safe for any thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._counted: WeakKeyDictionary[Engine | Connection, dict[bool, _Counted]] = WeakKeyDictionary()

    def around(
        self, session: Session, node: Node, now: datetime, *, reported_since: datetime, contact_since: datetime
    ) -> Racks:
        """Return the racks with ``node`` itself, which answers. They are counted again after ``COUNTED_FOR``."""
        database = session.get_bind()
        with self._turn:
            known = self._counted.setdefault(database, {}).get(node.is_simulated)
            if known is None or not timedelta(0) <= now - known.at < COUNTED_FOR:
                found = racks_of(session, node.id, reported_since=reported_since, contact_since=contact_since)
                known = _Counted(now, dict(found))
                self._counted[database][node.is_simulated] = known
            home = known.racks.get(node.rack or "", ())
            if node.id not in home:
                known.racks[node.rack or ""] = sorted((*home, node.id))
            return dict(known.racks)
