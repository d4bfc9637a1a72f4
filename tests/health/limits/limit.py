"""One rule over states and rates at its own limit, and the events of such a situation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from muster.domain.evidence.findings import EventKind, GpuSignal, Severity, Source
from tests.health.case_factory import GPU, signal

NODE_KINDS = {
    EventKind.HOST_STATE,
    EventKind.HOST_RATES,
    EventKind.PORT_STATE,
    EventKind.PORT_RATES,
    EventKind.PAIR_PROBE,
}


@dataclass(frozen=True)
class Limit:
    """``below`` says nothing; ``at`` is the fault ``key``."""

    kind: EventKind
    below: Mapping[str, float]
    at: Mapping[str, float]
    key: str
    severity: Severity
    text: str = ""


def reported(kind: EventKind, values: Mapping[str, float], text: str = "") -> GpuSignal:
    gpu = None if kind in NODE_KINDS else GPU
    source = Source.HOST if gpu is None else Source.NVML
    return replace(signal(kind, gpu=gpu, source=source, text=text), values=dict(values))


STATE, RATES = EventKind.GPU_STATE, EventKind.GPU_RATES
HOST, HOST_RATES = EventKind.HOST_STATE, EventKind.HOST_RATES
PORT, PORT_RATE = EventKind.PORT_STATE, EventKind.PORT_RATES
SEEN = {"was_active": 1}
MINUTE = {"window_s": 60.0}
X16 = {"pcie_width": 16.0, **MINUTE}
RDMA = "mlx5_0/1"
