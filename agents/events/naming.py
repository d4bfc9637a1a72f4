"""Origins of reported states and rises: unique over all processes of the agent in this boot."""

from collections.abc import Mapping
from dataclasses import dataclass

from agents.probes.interface import ProbeEvent
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.ids import GpuUuid


@dataclass(slots=True)
class Naming:
    """Names of one agent process. ``session`` distinguishes it from others."""

    session: str
    _num_reported: int = 0

    def event(
        self,
        kind: EventKind,
        source: Source,
        at_ms: int,
        values: Mapping[str, float],
        *,
        gpu_uuid: GpuUuid | None = None,
        text: str = "",
        subject: str = "",
    ) -> ProbeEvent:
        """Return an event. ``subject``: what it is about where that is no GPU and the text does not name it."""
        self._num_reported += 1
        origin = f"told:{self.session}:{kind}:{gpu_uuid or subject or text or 'host'}:{self._num_reported}"
        return ProbeEvent(
            origin=origin, kind=kind, source=source, at_ms=at_ms, gpu_uuid=gpu_uuid, text=text, values=values
        )
