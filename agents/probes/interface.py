"""What a probe says of a host: its inventory, one check of each GPU, and events as they happen.

One small interface for real and simulated GPUs; the daemon and ``muster agent scan`` use the same one-shot ``check``.
None stands for what a GPU does not support or did not answer, never zero: ``unsupported`` and ``faults`` say which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from agents.burn_in.devices import ComputeDevice
from muster.domain.evidence.findings import EventKind, GpuSample, Source
from muster.domain.gpu.metrics import NUM_METRICS, Values
from muster.domain.ids import GpuUuid

NO_VALUES: Final[Values] = (None,) * NUM_METRICS
WHOLE_GPU: Final = "gpu"
"""Key of a fault that is about the GPU as such, not about one metric."""


class ProbeError(Exception):
    """The host as a whole cannot be probed. ``suggestion`` says what to do about it."""

    def __init__(self, words: str, suggestion: str = "") -> None:
        self.suggestion = suggestion
        super().__init__(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """What one GPU is. ``index`` is its slot on the host; history follows ``serial`` where there is one.

    ``unsupported`` names the fields that this GPU has no answer for; ``faults`` what failed, in the driver's words.
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
    """Link that is up → what is at its other end: ``switch 00000000:05:00.0``, ``gpu …``, or ``nothing``."""
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
    """A GPU that the driver counts and that did not tell its UUID: lost or hanging since before we started."""

    index: int
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInventory:
    """``cuda_version`` is the newest that the driver supports, such as ``12.8``."""

    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[GpuIdentity, ...] = ()
    nameless: tuple[NamelessGpu, ...] = ()
    is_simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCheck:
    """One check of one GPU.

    ``is_lost``: the driver says so, or no longer lists it. ``is_late``: it did not answer within the deadline; what it
    is we do not know. In both cases every value is None. ``unsupported`` and ``faults`` hold names of metrics, and so
    does ``from_dcgm``: of those that NVML does not tell, and DCGM does.
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

    def sample(self) -> GpuSample:
        return GpuSample(self.gpu_uuid, self.at_ms, self.values, self.is_lost, self.from_dcgm)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInspection:
    """One slow look at one GPU: what seldom moves, and its counters so far.

    ``state``: by the names of ``state_readings.GPU_STATE``, ``words``: of ``GPU_WORDS``. ``counters`` and, of each
    link, ``link_counters``: by the names of ``GPU_RATES``. ``beside``: what is told with a rise and is none. Lost and
    late as in ``GpuCheck``; what is missing is unknown, and ``unsupported`` and ``faults`` say of what and why.
    """

    gpu_uuid: GpuUuid
    index: int
    state: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    link_counters: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    beside: Mapping[str, float] = field(default_factory=dict)
    unsupported: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)
    is_lost: bool = False
    is_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEvent:
    """One event, before the agent gives it the host's identity.

    ``origin`` is unique within one boot of the host: with the boot id in front it is the signal's id.
    ``gpu_uuid`` is None where the event is about the host, or about a GPU that cannot be named.
    """

    origin: str
    kind: EventKind
    source: Source
    at_ms: int
    gpu_uuid: GpuUuid | None = None
    code: int | None = None
    text: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


class Probe(Protocol):
    """Each method may be called while another thread is in any of them; ``events`` by one thread at a time."""

    def identify(self) -> HostInventory:
        """What is in the host now. Raises ProbeError where the driver as a whole is away."""

    def check(self, now_ms: int) -> tuple[GpuCheck, ...]:
        """Every known GPU once, in slot order, within the probe's deadline whatever one GPU does.

        ``now_ms`` is the wall clock, milliseconds since 1970. Raises ProbeError where the driver as a whole is away.
        """

    def inspect(self, now_ms: int) -> tuple[GpuInspection, ...]:
        """The slow look at every known GPU, in slot order, within the same deadline as ``check``. Raises ProbeError."""

    def events(self, timeout_s: float) -> tuple[ProbeEvent, ...]:
        """Waits up to ``timeout_s`` for the first event or change, then gives all events, each once."""

    def take_change(self) -> bool:
        """Whether the driver has told, since this was asked last, of a change that a look at the GPUs would show.

        What it told before the newest ``events`` counts. Asked by the thread that waits for events.
        """

    def compute_device(self, gpu_uuid: GpuUuid) -> ComputeDevice:
        """What a burn-in of this GPU computes on. Raises ProbeError: there is no such GPU, or it is lost."""

    def close(self) -> None:
        """Lets go of driver and threads. A hanging GPU does not hold it up."""
