"""A dcgm-exporter's XID gauge (DCGM field 230) as events: it shows the last XID only, neither when nor how often.

Its change from one scrape to the next is an XID of the time between. A GPU's first reading, and the first after the
exporter was away, are only remembered, so that an old XID is never reported as new. The same XID twice in a row does
not show: the kernel log and NVML report that.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from agents.dcgm.metrics import DcgmGpu
from agents.probes.interface import ProbeEvent
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.evidence.state_readings import SINCE_BOOT_S
from muster.domain.ids import GpuUuid

_NONE: Final = 0
"""The gauge's value before any XID, and after a restart of DCGM."""


class LastXids:
    def __init__(self) -> None:
        self._known: dict[GpuUuid, int] = {}

    def changes(self, exported: Mapping[str, DcgmGpu], gpus: Iterable[GpuUuid], at_ms: int) -> Iterator[ProbeEvent]:
        """Yield the XIDs of ``gpus``, this host's. ``exported``: the newest scrape, empty where there is none."""
        before, self._known = self._known, {}
        for uuid in gpus:
            told = exported.get(uuid)
            if told is None or told.last_xid is None:
                continue
            self._known[uuid] = told.last_xid
            if told.last_xid not in {_NONE, before.get(uuid, told.last_xid)}:
                yield _event(uuid, told.last_xid, at_ms)


def _event(uuid: GpuUuid, code: int, at_ms: int) -> ProbeEvent:
    return ProbeEvent(
        origin=f"dcgm:{uuid}:xid:{code}:{time.monotonic_ns()}",
        kind=EventKind.XID,
        source=Source.DCGM,
        at_ms=at_ms,
        gpu_uuid=uuid,
        code=code,
        text=f"XID {code}, by a dcgm-exporter",
        values={SINCE_BOOT_S: time.clock_gettime(time.CLOCK_BOOTTIME)},
    )
