"""Which hosts answer probes, by rack, as this process counted them a moment ago.

Each host of a fleet asks once a round, and the count goes over the whole fleet: 12,500 hosts would count themselves 14
times a second. Who is away since is left out by whoever is about to name it; who has just come adds itself.
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
"""Of a round's 15 minutes."""


@dataclass(frozen=True, slots=True)
class _Counted:
    at: datetime
    racks: dict[str, Sequence[NodeId]]


class AnsweringRacks:
    """Of simulated hosts and of the others, which probe each other only. May be asked from any thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._counted: WeakKeyDictionary[Engine | Connection, dict[bool, _Counted]] = WeakKeyDictionary()

    def around(
        self, session: Session, node: Node, now: datetime, *, told_since: datetime, heard_since: datetime
    ) -> Racks:
        """With ``node`` itself, which answers. Counted anew after ``COUNTED_FOR``."""
        database = session.get_bind()
        with self._turn:
            known = self._counted.setdefault(database, {}).get(node.is_simulated)
            if known is None or not timedelta(0) <= now - known.at < COUNTED_FOR:
                found = racks_of(session, node.id, told_since=told_since, heard_since=heard_since)
                known = _Counted(now, dict(found))
                self._counted[database][node.is_simulated] = known
            home = known.racks.get(node.rack or "", ())
            if node.id not in home:
                known.racks[node.rack or ""] = sorted((*home, node.id))
            return dict(known.racks)
