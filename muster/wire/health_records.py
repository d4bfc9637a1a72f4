"""The records that ``muster node export`` writes and ``muster health replay`` reads, next to reports and events.

One JSON object a line, with its ``type``; all times are ms since 1970, UTC. Records stand in the order in which the
server received their contents.
"""

from typing import Annotated, Any, Final, get_args

from msgspec import Meta, Struct, field

from muster.domain.evidence.findings import Source, Suppression, Trust
from muster.domain.evidence.repairs import RepairAction, RepairOutcome
from muster.domain.evidence.traits import FaultGroup
from muster.domain.states import Standing
from muster.wire.telemetry import GpuReport, Milliseconds

UNKNOWN_NODE: Final = "node"
Share = Annotated[int, Meta(ge=1, le=100_000_000)]
Text = Annotated[str, Meta(max_length=4096)]


class Record(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag=str.lower
):
    """One record of a replay. ``node_id``: the host that it is about."""

    node_id: str = UNKNOWN_NODE


class Export(Record, frozen=True, kw_only=True, tag="export"):
    """The first line of an export: its subject, time and form. A replay skips it.

    ``notes``: facts that the records lack, in sentences.
    """

    node_name: str
    from_ms: Milliseconds
    until_ms: Milliseconds
    schema: int
    policy_version: int | None = None
    notes: tuple[str, ...] = ()


class Fleet(Record, frozen=True, kw_only=True, tag="fleet"):
    """The numbers of GPUs that are not retired, in all and by rack and cohort, for the circuit breaker."""

    at_ms: Milliseconds = 0
    num_gpus: Share
    racks: dict[str, Share] = field(default_factory=dict)
    cohorts: dict[str, Share] = field(default_factory=dict)


class Gpu(Record, frozen=True, kw_only=True, tag="gpu"):
    """A GPU is in this standing from ``at_ms`` on, or since ``since_ms`` before that."""

    gpu_uuid: str
    standing: Standing
    at_ms: Milliseconds
    model: str = ""
    since_ms: Milliseconds | None = None
    origin: Standing | None = None
    rack: str | None = None
    cohort: str | None = None


class Sample(Record, frozen=True, kw_only=True, tag="sample"):
    """Readings by the names of ``domain.gpu.metrics``; a missing one is unknown."""

    gpu_uuid: str
    at_ms: Milliseconds
    values: dict[str, float | None] = field(default_factory=dict)
    is_lost: bool = False


class Samples(Record, frozen=True, kw_only=True, tag="samples"):
    """Readings of one moment, of all GPUs of the host that reported any, in the order of the schema."""

    at_ms: Milliseconds
    schema: int
    gpus: tuple[GpuReport, ...]


class BurnIn(Record, frozen=True, kw_only=True, tag="burn_in"):
    """The end of a burn-in.

    ``reasons``: the failures as text; ``is_wrong``: it gave a wrong result. ``covers``: the fault groups tested;
    null means all.
    """

    gpu_uuid: str
    began_ms: Milliseconds
    ended_ms: Milliseconds
    has_passed: bool
    reasons: tuple[Text, ...] = ()
    is_wrong: bool = False
    covers: tuple[FaultGroup, ...] | None = None


class Time(Record, frozen=True, kw_only=True, tag="time"):
    """The passage of time up to ``at_ms``."""

    at_ms: Milliseconds


class BreakerClosed(Record, frozen=True, kw_only=True, tag="breaker_closed"):
    scope: str
    at_ms: Milliseconds


class Maintenance(Record, frozen=True, kw_only=True, tag="maintenance"):
    """A time of maintenance. ``is_drain``: the work needs a drained node; otherwise a window was declared."""

    at_ms: Milliseconds
    until_ms: Milliseconds
    is_drain: bool = False


class Finding(Record, frozen=True, kw_only=True, tag="finding"):
    """A finding of a rule that needs the records of more than one host, such as ``peers``."""

    at_ms: Milliseconds
    detector: str
    version: int = 1
    fault: str
    severity: str
    summary: Text
    gpu_uuid: str | None = None
    source: Source = Source.NVML
    trust: Trust = Trust.MEASURED
    counts_for_ms: Annotated[int, Meta(ge=0)] = 0
    threatens_correctness: bool = False
    values: dict[str, float] = field(default_factory=dict)
    suppressed_by: tuple[Suppression, ...] = ()
    weighs_from_ms: Milliseconds | None = None
    boot_mark: Annotated[int, Meta(ge=0)] | None = None


class KnownEvidence(Record, frozen=True, kw_only=True, tag="evidence"):
    """Evidence that was there before the records begin.

    The fields from ``suppressed_by`` on are named as in ``domain.evidence.findings``. An export of the release before
    has them as keys in ``values``, which are read too.
    """

    id: str
    at_ms: Milliseconds
    detector: str
    version: int = 1
    fault: str
    severity: str
    summary: Text
    gpu_uuid: str | None = None
    sources: tuple[Source, ...]
    trust: Trust = Trust.MEASURED
    onset_ms: Milliseconds
    last_seen_ms: Milliseconds
    counts_for_ms: Annotated[int, Meta(ge=0)] = 0
    threatens_correctness: bool = False
    is_dismissed: bool = False
    is_suspended: bool = False
    values: dict[str, float] = field(default_factory=dict)
    suppressed_by: tuple[Suppression, ...] = ()
    weighs_from_ms: Milliseconds | None = None
    boot_mark: Annotated[int, Meta(ge=0)] | None = None
    outlasted_at_ms: Milliseconds | None = None
    closed_at_ms: Milliseconds | None = None
    reopened_at_ms: Milliseconds | None = None


class _Act(Record, frozen=True, kw_only=True):
    """An action of a person. ``by``: the person; ``reason``: as the audit log has it."""

    gpu_uuid: str
    at_ms: Milliseconds
    by: str = "a person"
    reason: Text = "no reason was recorded"


class Dismissal(_Act, frozen=True, kw_only=True, tag="dismissal"):
    """The dismissal of the evidence of ``fault`` that was seen from ``onset_ms`` to ``last_seen_ms``."""

    fault: str
    onset_ms: Milliseconds
    last_seen_ms: Milliseconds


class RepairBegan(_Act, frozen=True, kw_only=True, tag="repair_began"):
    action: RepairAction
    fault_group: str


class RepairEnded(_Act, frozen=True, kw_only=True, tag="repair_ended"):
    began_ms: Milliseconds
    fault_group: str
    outcome: RepairOutcome


class Moving(_Act, frozen=True, kw_only=True, tag="person_moved"):
    """A transition by a person. ``to``: RETIRED, UNPROVEN (reinstated) or QUARANTINED (taken out)."""

    to: Standing


class Override(_Act, frozen=True, kw_only=True, tag="override"):
    """An override by a person. A replay only reports it: it moves nothing."""

    standing: Standing
    until_ms: Milliseconds


HealthRecord = (
    Gpu
    | Fleet
    | Sample
    | Samples
    | BurnIn
    | BreakerClosed
    | Maintenance
    | Time
    | KnownEvidence
    | Finding
    | Dismissal
    | RepairBegan
    | RepairEnded
    | Moving
    | Override
    | Export
)
RECORDS: Final[dict[str, type[Any]]] = {kind.__struct_config__.tag: kind for kind in get_args(HealthRecord)}
"""Tag → type of record."""
LINE_TYPES: Final = ("report", "event", *RECORDS)
"""What ``type`` may be."""
