"""Reports as tests make them, and clocks that stand until they are moved."""

import random
from dataclasses import dataclass

from muster.domain.gpu.metrics import NUM_METRICS, SCHEMA
from muster.wire.telemetry import TELEMETRY_PROTOCOL, EventReport, GpuReport, NodeReport, Report

BOOT: str = "boot-1"
START_MS: int = 1_795_000_000_000


@dataclass
class Clock:
    """Monotonic and wall time, moved by hand."""

    passed_ms: int = 0

    def monotonic_ms(self) -> int:
        return self.passed_ms

    def wall_ms(self) -> int:
        return START_MS + self.passed_ms

    def advance(self, seconds: float) -> None:
        self.passed_ms += round(seconds * 1000)


def sample(seq: int, at_ms: int = START_MS, *, num_gpus: int = 2, boot_id: str = BOOT) -> Report:
    chance = random.Random(seq)  # noqa: S311  # the same number, the same readings
    gpus = tuple(
        GpuReport(uuid=f"GPU-{index}", values=[round(chance.uniform(0, 1e5), 3) for _ in range(NUM_METRICS)])
        for index in range(num_gpus)
    )
    node = NodeReport(num_gpus=num_gpus, agent_version="test")
    return Report(
        protocol=TELEMETRY_PROTOCOL, boot_id=boot_id, seq=seq, at_ms=at_ms, schema=SCHEMA, gpus=gpus, node=node
    )


def event(seq: int, at_ms: int = START_MS, *, boot_id: str = BOOT) -> Report:
    found = EventReport(
        event_id=f"{boot_id}:xid:{seq}", kind="xid", source="nvml", at_ms=at_ms, gpu_uuid="GPU-0", code=94
    )
    return Report(protocol=TELEMETRY_PROTOCOL, boot_id=boot_id, seq=seq, at_ms=at_ms, schema=SCHEMA, events=(found,))
