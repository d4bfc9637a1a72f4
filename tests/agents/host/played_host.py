"""A host of files that a test writes, with the teller that checks it when the test asks."""

from pathlib import Path

from agents.events.naming import Naming
from agents.host.clock import ServerClock
from agents.host.events import HostPlaces, HostTeller
from agents.probes.interface import ProbeEvent
from muster.domain.evidence.findings import EventKind
from tests.agents.host.trees import HostTree

WALL_MS = 1_790_000_000_000


class Host:
    """One host that is checked when a test asks; its wall clock may be stepped."""

    def __init__(self, root: Path) -> None:
        self.tree = HostTree(root)
        self.clock = ServerClock()
        self.counts = {"expected_gpus": 8.0, "found_gpus": 8.0}
        self.stepped_ms = 0
        self._now_s = 1_000.0
        places = HostPlaces(root=root, folders=(root,))
        self.teller = HostTeller(Naming("1"), places, server_clock=self.clock, gpus=lambda: self.counts)

    @property
    def _at_ms(self) -> int:
        return WALL_MS + round(self._now_s * 1000) + self.stepped_ms

    def ports(self, after_s: float = 10) -> list[ProbeEvent]:
        self._now_s += after_s
        return list(self.teller.check_ports(self._at_ms, self._now_s))

    def minute(self, after_s: float = 60) -> list[ProbeEvent]:
        return [*self.ports(after_s), *self.teller.report(self._at_ms, self._now_s)]


def of(kind: EventKind, events: list[ProbeEvent]) -> list[ProbeEvent]:
    return [event for event in events if event.kind is kind]
