"""Findings about GPUs: what was seen (signals), and what detectors make of it (evidence).

Signals and evidence are plain data. The same fault seen by NVML, kernel log and DCGM is one evidence with three
sources; it is never edited, only joined by sources, dismissed by a person, or left to decay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from muster.domain.gpu.metrics import Values
from muster.domain.ids import EvidenceId, GpuUuid, NodeId


class Severity(IntEnum):
    """The severity of a finding, in order.

    WARNING and worse keep a GPU in probation. CONDEMNING quarantines a GPU if the fault was measured.
    """

    INFO = 0
    WARNING = 1
    DEGRADED = 2
    CONDEMNING = 3


class Trust(StrEnum):
    """MEASURED by our own agent, burn-in or replay; REPORTED by a tenant's job, which cannot condemn."""

    MEASURED = "measured"
    REPORTED = "reported"


class Source(StrEnum):
    NVML = "nvml"
    KERNEL_LOG = "kernel_log"
    DCGM = "dcgm"
    BURN_IN = "burn_in"
    QUICK_CHECK = "quick_check"
    PAIRWISE = "pairwise"
    """All-gathers of a gang's hosts before its start."""
    JOB = "job"
    AGENT = "agent"
    HOST = "host"
    """The host's own counters: /sys and /proc."""


class EventKind(StrEnum):
    """The kinds of events that an agent reports at once.

    ``domain.evidence.state_readings`` lists the values of states and rises.
    """

    XID = "xid"
    SXID = "sxid"
    NIC_DRIVER = "nic_driver"
    HOST_LOG = "host_log"
    GPU_LOST = "gpu_lost"
    GPU_COUNT = "gpu_count"
    GPU_FOUND = "gpu_found"
    GPU_STATE = "gpu_state"
    GPU_RATES = "gpu_rates"
    COUNTER_RESET = "counter_reset"
    HOST_STATE = "host_state"
    HOST_RATES = "host_rates"
    PORT_STATE = "port_state"
    PORT_RATES = "port_rates"
    PAIR_PROBE = "pair_probe"


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The readings of one GPU at one time. ``from_dcgm``: the metrics that NVML does not tell, and DCGM did."""

    gpu_uuid: GpuUuid
    at_ms: int
    values: Values
    is_lost: bool = False
    from_dcgm: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GpuSignal:
    """One event of one GPU (or of its node, where ``gpu_uuid`` is None), seen by one source.

    ``signal_id`` is the same however often it is sent: boot id, place, code and monotonic time at the source.
    """

    signal_id: str
    kind: EventKind
    source: Source
    at_ms: int
    node_id: NodeId
    gpu_uuid: GpuUuid | None = None
    code: int | None = None
    text: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """The statement of a detector about one signal or sample, before it becomes a row.

    ``fault_key`` names the fault (such as ``xid:95``): findings with one key on one GPU whose onsets lie within the
    policy's coalescing window are one evidence. ``counts_for_ms`` is how long it weighs on the score.
    """

    detector: str
    version: int
    fault_key: str
    gpu_uuid: GpuUuid | None
    node_id: NodeId
    severity: Severity
    trust: Trust
    source: Source
    onset_ms: int
    counts_for_ms: int
    summary: str
    threatens_correctness: bool = False
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A stored finding with all its sources, as score and standing read it."""

    id: EvidenceId
    detector: str
    version: int
    fault_key: str
    gpu_uuid: GpuUuid | None
    node_id: NodeId
    severity: Severity
    trust: Trust
    sources: tuple[Source, ...]
    onset_ms: int
    last_seen_ms: int
    counts_for_ms: int
    summary: str
    threatens_correctness: bool = False
    is_dismissed: bool = False
    is_suspended: bool = False
    """Set while the job that caused it is HELD as a suspect program."""
    values: Mapping[str, float] = field(default_factory=dict)
