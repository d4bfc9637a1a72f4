"""Findings about GPUs: what was seen (signals), and what detectors make of it (evidence).

Signals and evidence are plain data. The same fault seen by NVML, kernel log and DCGM is one evidence with three
sources. Its readings (``values``) are only added to by sources of the same fault. Its life is the typed fields from
``suppressed_by`` on: ``Evidence.state`` names it, and ``EVIDENCE_EDGES`` lists how it may change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, Self

from muster.domain.evidence.traits import FaultTraits
from muster.domain.gpu.metrics import Values
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.states import EVIDENCE_EDGES, EvidenceState, require_edge


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


class Suppression(StrEnum):
    """The reasons for which evidence is kept and shown and weighs nothing."""

    SHADOW = "shadow"
    """Its rule is in shadow mode."""
    WARM_UP = "warm_up"
    """Its links were training after a boot."""
    MAINTENANCE = "maintenance"
    """Its node was in maintenance; what still stands after that weighs."""
    SUPERSEDED = "superseded"
    """The kernel log reported the same error with more detail."""
    FOLLOWS = "follows"
    """It is the clean-up after another XID."""
    OVERRULED_BY_NVML = "overruled_by_nvml"
    """The driver asks for less than the catalogue, by NVML."""
    OVERRULED_BY_154 = "overruled_by_xid_154"
    """The driver asks for less than the catalogue, by an XID 154."""


NOT_SUPPRESSED: Final[frozenset[Suppression]] = frozenset()


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
    """The readings of one GPU at one time. ``from_dcgm``: the metrics that came from DCGM, because NVML lacks them."""

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
class Pending:
    """The condition under which a finding weighs: that its fault still stands at ``weighs_from_ms``.

    ``boot_mark``: of a state, the mark of the boot in which it was reported, 0 if that is unknown. None: of a moment,
    which weighs by time alone.
    """

    weighs_from_ms: int
    boot_mark: int | None = None


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
    suppressed_by: frozenset[Suppression] = NOT_SUPPRESSED
    pending: Pending | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A stored finding with all its sources, as score and standing read it.

    ``values`` holds readings alone. ``closed_at_ms``: when its fault was seen to be over. ``reopened_at_ms``: when the
    fault was last reported again after it was over, or in another boot. ``outlasted_at_ms``: from when on a pending
    fault that lasted weighs. ``is_suspended``: set while the job that caused it is HELD as a suspect program.
    ``traits``: what judgement has to know of its detector.
    """

    id: EvidenceId
    detector: str
    version: int
    fault_key: str
    traits: FaultTraits
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
    values: Mapping[str, float] = field(default_factory=dict)
    suppressed_by: frozenset[Suppression] = NOT_SUPPRESSED
    pending: Pending | None = None
    outlasted_at_ms: int | None = None
    closed_at_ms: int | None = None
    reopened_at_ms: int | None = None

    @property
    def state(self) -> EvidenceState:
        """The state by these fields: a person's answer comes first, then a suspicion, then reasons."""
        if self.is_dismissed:
            return EvidenceState.DISMISSED
        if self.is_suspended:
            return EvidenceState.SUSPENDED
        if self.suppressed_by:
            return EvidenceState.SUPPRESSED
        if self.pending is not None:
            return EvidenceState.PENDING if self.closed_at_ms is None else EvidenceState.LAPSED
        return EvidenceState.ACTIVE if self.closed_at_ms is None else EvidenceState.CLOSED

    def changed_to(self, after: Self) -> Self:
        """Return ``after``, the same evidence later.

        Raises:
            IllegalTransitionError: its state is not reached from this one by a listed edge (I21).
        """
        if after.state is not self.state:
            require_edge(EVIDENCE_EDGES, self.state, after.state)
        return after
