"""The reports of an agent on its host: current state, events at once, history after an outage.

One report is about one node and is ordered by (boot_id, seq). Values have the order of ``domain.gpu.metrics.METRICS``,
and as many as the report's schema has metrics. A report of an earlier schema is as valid (``in_present_schema``).
A report with ``is_history`` fills blocks and chunks and never moves latest state; its events still count.
"""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import replace

from muster.domain.gpu.metrics import NUM_METRICS, SCHEMA, WIDTHS
from muster.wire.host import BootId, Count, ShortText
from muster.wire.messages import WireAnswer, WireMessage

TELEMETRY_PROTOCOL: Final = 1
MAX_GPUS: Final = 72
MAX_EVENTS: Final = 1_000
MAX_GROUPS: Final = 32
MAX_PORTS: Final = 64
MAX_PORT_NAME: Final = 128
BYTES_PER_GBIT: Final = 125_000_000

Milliseconds = Annotated[int, Meta(ge=0, lt=1 << 47)]
"""Since 1970, UTC."""
Values = Annotated[
    list[Annotated[float, Meta(ge=-1e15, le=1e15)] | None],
    Meta(min_length=min(WIDTHS.values()), max_length=NUM_METRICS),
]


GroupName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]
Ages = dict[GroupName, Annotated[float, Meta(ge=0, le=1e9)]]
"""Group of signals (``domain.gpu.signal_groups``) → s since it was last delivered. Unknown groups are ignored."""
EventKindName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]


class GpuReport(WireMessage, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The report on one GPU. ``is_lost``: the driver no longer answers for it; ``values`` are then all None.

    ``from_dcgm``: names of the metrics that come from DCGM, since NVML lacks them. ``is_late``: the driver gave no
    answer for it. ``latency_ms``: how long the call to the driver took, or has been in progress. ``ages_s``: of groups
    that are delivered for each GPU by itself. Empty fields are omitted, since an older server does not know them.
    """

    uuid: ShortText
    values: Values
    is_lost: bool = False
    from_dcgm: Annotated[tuple[ShortText, ...], Meta(max_length=NUM_METRICS)] = ()
    is_late: bool = False
    latency_ms: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    ages_s: Annotated[Ages, Meta(max_length=MAX_GROUPS)] = field(default_factory=dict)


BytesPerSecond = Annotated[float, Meta(ge=0, le=1e13)]
PortName = Annotated[str, Meta(min_length=1, max_length=MAX_PORT_NAME, pattern=r"^[^\x00-\x1f\x7f]+\Z")]


class PortThroughput(WireMessage, frozen=True, array_like=True, gc=False):
    """Bytes per second through one network port since the report before, and its link's speed, None where unknown.

    An array, since each report has one for each port.
    """

    port: PortName
    sent_bytes_per_s: BytesPerSecond
    received_bytes_per_s: BytesPerSecond
    link_gbps: Annotated[float, Meta(gt=0, le=1e5)] | None = None


class NodeReport(WireMessage, frozen=True, kw_only=True):
    """The host's own readings. ``num_gpus``: GPUs that the driver answers for. ``spool_…``: the spool's content.

    ``port_throughput``: of ports that are up; omitted where there are none, since an older server does not know it.
    """

    cpu_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    memory_used_mib: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    num_gpus: Annotated[int, Meta(ge=0, le=1024)] = 0
    agent_version: ShortText = ""
    driver_version: ShortText = ""
    spool_reports: Count = 0
    spool_bytes: Count = 0
    port_throughput: Annotated[tuple[PortThroughput, ...], Meta(max_length=MAX_PORTS)] | UnsetType = UNSET


class EventReport(WireMessage, frozen=True, kw_only=True):
    """One event. ``event_id`` is the same in every report that carries it; open events are repeated until closed.

    ``kind``: of ``domain.evidence.findings.EventKind``. A server stores an unknown kind and
    sets it aside: the rest of a newer agent's report counts.
    """

    event_id: Annotated[str, Meta(min_length=1, max_length=200)]
    kind: EventKindName
    source: Literal["nvml", "kernel_log", "dcgm", "agent", "host"]
    at_ms: Milliseconds
    gpu_uuid: ShortText | None = None
    code: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    text: Annotated[str, Meta(max_length=1024)] = ""
    values: dict[ShortText, float] = field(default_factory=dict)
    is_open: bool = False


class GapMarker(WireMessage, frozen=True, kw_only=True):
    """The reports that the agent had to drop, so that each hole in history is counted (I14)."""

    priority: Literal["events", "health", "metrics"]
    first_seq: Count
    last_seq: Count
    num_reports: Count
    from_ms: Milliseconds
    until_ms: Milliseconds
    why: ShortText


class Report(WireMessage, frozen=True, kw_only=True):
    """A report.

    ``ages_s``: of the groups that are delivered for the whole host. Where it is set, an empty one too, the report
    declares that freshness may be judged by it. An older agent omits it, and so does an agent that has released the
    driver for a repair.
    """

    protocol: int
    boot_id: BootId
    seq: Count
    at_ms: Milliseconds
    schema: int
    is_history: bool = False
    gpus: Annotated[tuple[GpuReport, ...], Meta(max_length=MAX_GPUS)] = ()
    node: NodeReport | None = None
    events: Annotated[tuple[EventReport, ...], Meta(max_length=MAX_EVENTS)] = ()
    gaps: Annotated[tuple[GapMarker, ...], Meta(max_length=100)] = ()
    ages_s: Annotated[Ages, Meta(max_length=MAX_GROUPS)] | UnsetType = UNSET


def in_present_schema(gpus: tuple[GpuReport, ...], schema: int) -> tuple[GpuReport, ...]:
    """Return the reports on GPUs with a value for each metric: None for one that ``schema`` lacks.

    Raises:
        KeyError: of a schema that this release does not read.
        ValueError: of another number of values than the schema has.
    """
    width = WIDTHS[schema]
    for gpu in gpus:
        if len(gpu.values) != width:
            raise ValueError(f"{len(gpu.values)} values of a GPU; schema {schema} has {width}")
    if schema == SCHEMA:
        return gpus
    missing = [None] * (NUM_METRICS - width)
    return tuple(replace(gpu, values=gpu.values + missing) for gpu in gpus)


class ReportAccepted(WireAnswer, frozen=True, kw_only=True):
    """Durable now: the agent may forget (boot_id, seq). ``interval_s``: how often the server asks for samples.

    ``set_aside``: GPUs in whose sample a value is no number, by UUID: the rest of the report counts. Only where there
    are any.
    """

    boot_id: str
    seq: int
    is_duplicate: bool = False
    interval_s: float = 10.0
    set_aside: tuple[str, ...] | UnsetType = UNSET
