"""Interface of probes: a host's inventory, one check of each GPU, and events as they happen.

One small interface for real and simulated GPUs; the daemon and ``muster agent scan`` use the same one-shot ``check``.
None stands for a value that a GPU does not support or did not answer, never zero: ``unsupported`` and ``faults``
distinguish the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from muster.domain.evidence.findings import EventKind, GpuSample, Source
from muster.domain.gpu.metrics import NUM_METRICS, Values
from muster.domain.gpu.signal_groups import SignalGroup
from muster.domain.ids import GpuUuid

NO_VALUES: Final[Values] = (None,) * NUM_METRICS
WHOLE_GPU: Final = "gpu"
"""Key of a fault that is about the GPU as such, not about one metric."""


class ProbeError(Exception):
    """The host as a whole cannot be probed. ``suggestion`` states what to do about it."""

    def __init__(self, words: str, suggestion: str = "") -> None:
        self.suggestion = suggestion
        super().__init__(words)


class ReleasedError(ProbeError):
    """The agent has released the driver for a repair, so it does not ask it."""

    def __init__(self) -> None:
        super().__init__("the agent has released the driver for a repair")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """Identity of one GPU. ``index`` is its slot on the host; history follows ``serial`` where there is one.

    ``unsupported`` names the fields for which this GPU has no answer; ``faults`` the failed ones, with the driver's
    message.
    """

    uuid: GpuUuid
    index: int
    model: str | None = None
    serial: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    vbios_version: str | None = None
    gsp_firmware_version: str | None = None
    inforom_version: str | None = None
    board_part_number: str | None = None
    pci_bus_id: str | None = None
    module_id: int | None = None
    num_nvlinks: int | None = None
    nvlink_ends: Mapping[int, str] | None = None
    """Link that is up → its other end: ``switch 00000000:05:00.0``, ``gpu …``, or ``nothing``."""
    is_mig_enabled: bool | None = None
    is_ecc_enabled: bool | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    min_power_limit_w: float | None = None
    max_power_limit_w: float | None = None
    unsupported: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamelessGpu:
    """A GPU that the driver counts and whose UUID is unknown: lost or hanging since before the agent started."""

    index: int
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInventory:
    """Inventory of a host. ``cuda_version`` is the newest that the driver supports, such as ``12.8``."""

    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[GpuIdentity, ...] = ()
    nameless: tuple[NamelessGpu, ...] = ()
    is_simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCheck:
    """One check of one GPU.

    ``is_lost``: the driver reports it lost, or no longer lists it. ``is_late``: it did not answer within the deadline;
    its state is unknown. In both cases every value is None. ``is_released``: the driver was not asked, for a repair.
    ``latency_ms``: how long the call took, or has been in progress; None where none was made. ``unsupported`` and
    ``faults`` hold names of metrics, and so does ``from_dcgm``: metrics that DCGM reports and NVML does not.
    """

    gpu_uuid: GpuUuid
    index: int
    at_ms: int
    values: Values = NO_VALUES
    unsupported: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)
    from_dcgm: frozenset[str] = frozenset()
    is_lost: bool = False
    is_late: bool = False
    is_released: bool = False
    latency_ms: float | None = None

    @property
    def is_unanswered(self) -> bool:
        """Return whether the driver was asked and gave no reading at all, in time or with an error."""
        if self.is_lost or self.is_released:
            return False
        return self.is_late or all(value is None for value in self.values)

    def sample(self) -> GpuSample:
        return GpuSample(self.gpu_uuid, self.at_ms, self.values, self.is_lost, self.from_dcgm)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInspection:
    """One slow inspection of one GPU: values that seldom change, and its counters so far.

    ``state``: by the names of ``state_readings.GPU_STATE``, ``words``: of ``GPU_WORDS``. ``counters`` and, of each
    link, ``link_counters``: by the names of ``GPU_RATES``. ``alongside``: reported with a rise and no rise itself. Lost
    and late as in ``GpuCheck``; a missing value is unknown, and ``unsupported`` and ``faults`` state which and why.
    """

    gpu_uuid: GpuUuid
    index: int
    state: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    link_counters: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    alongside: Mapping[str, float] = field(default_factory=dict)
    unsupported: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)
    is_lost: bool = False
    is_late: bool = False

    @property
    def is_answered(self) -> bool:
        return not self.is_lost and not self.is_late and WHOLE_GPU not in self.faults


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEvent:
    """One event, before the agent gives it the host's identity.

    ``origin`` is unique within one boot of the host: with the boot id in front it is the signal's id. ``gpu_uuid`` is
    None where the event is about the host, or about a GPU that cannot be named.
    """

    origin: str
    kind: EventKind
    source: Source
    at_ms: int
    gpu_uuid: GpuUuid | None = None
    code: int | None = None
    text: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """Device that a burn-in computes on: a real GPU by CUDA, or the CPU beneath a simulated one.

    ``is_wrong`` and ``rates``: the silent fault and the speed of a simulated GPU; a real one's are measured.
    """

    kind: Literal["cpu", "cuda"]
    is_wrong: bool = False
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_simulated(self) -> bool:
        return self.kind == "cpu"


class Probe(Protocol):
    """A probe. Each method may be called while another thread is in any of them; ``events`` by one thread at a time."""

    def identify(self) -> HostInventory:
        """Return the host's present inventory. Raises ProbeError where the driver as a whole is away."""

    def check(self, now_ms: int) -> tuple[GpuCheck, ...]:
        """Check every known GPU once, in slot order, within the probe's deadline whatever one GPU does.

        ``now_ms`` is the wall clock, milliseconds since 1970. Raises ProbeError where the driver as a whole is away.
        """

    def inspect(self, now_ms: int) -> tuple[GpuInspection, ...]:
        """Inspect every known GPU, in slot order, within the same deadline as ``check``. Raises ProbeError."""

    def events(self, timeout_s: float) -> tuple[ProbeEvent, ...]:
        """Wait up to ``timeout_s`` for the first event or change, and return all events, each once."""

    def take_change(self) -> bool:
        """Return whether the driver reported a change since the last call that a check of the GPUs would show.

        A change before the newest ``events`` counts. The caller is the thread that waits for events.
        """

    def ages_s(self) -> Mapping[SignalGroup, float]:
        """Return the seconds since each of its own readers last gave a sign of life; none where it has no reader."""

    def compute_device(self, gpu_uuid: GpuUuid) -> ComputeDevice:
        """Return the device for a burn-in of this GPU. Raises ProbeError: there is no such GPU, or it is lost."""

    def close(self) -> None:
        """Release driver and threads. A hanging GPU does not delay it."""
