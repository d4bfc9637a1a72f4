"""Presence of GPUs: the results of checks as events, once per change."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from agents.probes.interface import ProbeEvent
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.ids import GpuUuid


@dataclass(slots=True)
class Presence:
    """The GPUs of a host as last seen. A late GPU is neither lost nor found: it changes nothing here.

    ``session`` distinguishes two agent processes within one boot, so that their events have different origins.
    """

    session: str
    known: dict[GpuUuid, bool] = field(default_factory=dict)
    """UUID → is lost."""
    num_gpus: int | None = None
    _num_changes: int = 0

    def start(self, uuids: Iterable[GpuUuid], num_gpus: int) -> None:
        """Take the GPUs that were there when the probe started, without events."""
        self.known = dict.fromkeys(uuids, False)
        self.num_gpus = num_gpus

    def saw(self, uuid: GpuUuid, at_ms: int, *, is_lost: bool, text: str = "") -> ProbeEvent | None:
        was_lost = self.known.get(uuid)
        self.known[uuid] = is_lost
        if is_lost and not was_lost:
            return self._event(EventKind.GPU_LOST, uuid, at_ms, text or "the driver no longer answers for it")
        if not is_lost and was_lost is not False:
            return self._event(EventKind.GPU_FOUND, uuid, at_ms, text or "the driver answers for it")
        return None

    def counted(self, num_gpus: int, at_ms: int) -> ProbeEvent | None:
        before, self.num_gpus = self.num_gpus, num_gpus
        if before is None or before == num_gpus:
            return None
        text = f"the driver lists {num_gpus} GPUs, {before} before"
        return self._event(EventKind.GPU_COUNT, None, at_ms, text, {"before": before, "now": num_gpus})

    def _event(
        self, kind: EventKind, uuid: GpuUuid | None, at_ms: int, text: str, values: dict[str, float] | None = None
    ) -> ProbeEvent:
        self._num_changes += 1
        return ProbeEvent(
            origin=f"agent:{self.session}:{kind}:{uuid or 'host'}:{self._num_changes}",
            kind=kind,
            source=Source.AGENT,
            at_ms=at_ms,
            gpu_uuid=uuid,
            text=text,
            values=values or {},
        )
