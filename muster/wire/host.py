"""The host protocol: heartbeat, claim, report, logs. Every order and report carries the attempt's fence.

A wake-up over the broker carries nothing but "heartbeat now": the heartbeat's answer is what lists a host's unclaimed
attempts, stop orders and what to forget, so that losing the broker loses nothing (I20).
Durations cross the wire, never wall-clock deadlines: host and server clocks need not agree.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, convert, field

from muster.wire.meeting import PairwiseOrder
from muster.wire.messages import WireAnswer, WireMessage

PROTOCOL_VERSION: Final = 1

_STORABLE: Final = r"^[^\x00]*\Z"
"""PostgreSQL keeps no U+0000 in a text."""
BootId = Annotated[str, Meta(min_length=1, max_length=64, pattern=_STORABLE)]
ShortText = Annotated[str, Meta(max_length=128, pattern=_STORABLE)]
PositiveFence = Annotated[int, Meta(gt=0, le=(1 << 63) - 1)]
HOST_WORDS: Final = ("container", "datasets", "look", "ready", "secrets", "venv")
"""What a host of this release knows beyond the first release's orders; it states these as it beats and claims."""
TAKEN_IN_BEATS: Final = ("knows", "looks")
"""Fields of a heartbeat that the first release did not know: a host sends only the ones in the server's ``takes``."""
TELLS_MEETINGS: Final = "meets"
"""In ``takes`` of a server whose answers name meetings: of another's, an empty list says nothing."""
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]


class HostAttempt(WireMessage, frozen=True, kw_only=True):
    """An attempt that the host keeps a record of, with how far it came there."""

    attempt_id: ShortText
    fence: PositiveFence
    phase: Literal["claimed", "started", "exited", "clean"]


class PreflightReport(WireMessage, frozen=True, kw_only=True):
    """The result of a preflight before placement, repeated in every heartbeat until the server lists it no longer.

    ``unfit``: the job's tenant has to supply something. ``unable``: this host could not decide, or lacks something that
    another host may have.
    """

    look_id: ShortText
    found: Literal["fit", "unfit", "unable"]
    why: Annotated[str, Meta(max_length=4096, pattern=_STORABLE)] = ""
    looked_at: Annotated[tuple[ShortText, ...], Meta(max_length=64)] = ()


class HeartbeatRequest(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """The heartbeat of a host. Empty fields are omitted: an older server refuses a field that it does not know."""

    protocol: int
    boot_id: BootId
    seq: Count
    held: tuple[HostAttempt, ...] = ()
    rung: bool = False
    """Whether a wake-up over the broker caused this beat (for the figures only)."""
    knows: Annotated[tuple[ShortText, ...], Meta(max_length=64)] = ()
    """Of ``HOST_WORDS``; an older host says none."""
    looks: Annotated[tuple[PreflightReport, ...], Meta(max_length=64)] = ()


class UnclaimedAttempt(WireAnswer, frozen=True, kw_only=True):
    attempt_id: str
    fence: int


class StopOrder(WireAnswer, frozen=True, kw_only=True):
    """SIGTERM now; SIGKILL of everything ``kill_after_s`` from the answer's receipt (0 = at once)."""

    attempt_id: str
    fence: int
    reason: str
    kill_after_s: float


class HeartbeatAnswer(WireAnswer, frozen=True, kw_only=True):
    lease_s: float
    """How long, counted from the *sending* of the request, the host may keep its programs running."""
    heartbeat_s: float
    unclaimed: tuple[UnclaimedAttempt, ...] = ()
    stops: tuple[StopOrder, ...] = ()
    forget: tuple[str, ...] = ()
    """Attempts that the server knows as clean: their records on the host may go."""
    go: tuple[str, ...] = ()
    """Attempts all of whose hosts are ready: the program may start. Empty from an older server."""
    looks: tuple["PreflightOrder", ...] = ()
    """Preflights to run now, without any GPU. One that was reported and is not listed any more may be forgotten."""
    meets: tuple["AttemptPairwiseOrder", ...] = ()
    """Which of its parts meet other hosts now. A meeting that is listed no more is called off."""
    takes: tuple[str, ...] = ()
    """``TAKEN_IN_BEATS`` of this server, and ``TELLS_MEETINGS``. Empty from an older one, which refuses a beat that has
    more.
    """


class ClaimRequest(WireMessage, frozen=True, kw_only=True):
    protocol: int
    boot_id: BootId
    fence: PositiveFence
    nonce: ShortText
    knows: Annotated[tuple[ShortText, ...], Meta(max_length=64)] = ()
    """Of ``HOST_WORDS``, and words of newer releases; an older host says none."""


class Rendezvous(WireAnswer, frozen=True, kw_only=True):
    host: str
    port: int


class PartLimits(WireAnswer, frozen=True, kw_only=True):
    """The resources of the host that the part may use; None is without limit."""

    memory_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None
    io_read_bytes_per_s: int | None = None
    io_write_bytes_per_s: int | None = None


class PartMount(WireAnswer, frozen=True, kw_only=True):
    """A mount of the container. ``target`` None: the path inside is the host's path."""

    source: str
    target: str | None = None
    read_only: bool = True


class PartContainer(WireAnswer, frozen=True, kw_only=True):
    """The container of a part.

    ``engine`` None: the engine that the host has. ``user``: ``uid:gid``; None: the host worker's.
    """

    image: str
    engine: str | None = None
    mounts: tuple[PartMount, ...] = ()
    user: str | None = None

    @classmethod
    def of(cls, container: Mapping[str, Any] | None) -> "PartContainer | None":
        """Convert the container of a job's specification."""
        return None if container is None else convert(container, cls)


class PartDataset(WireAnswer, frozen=True, kw_only=True):
    """A dataset of the part.

    ``manifest`` None: the folder's own, if it has one. ``verify``: how its files are checked.
    """

    name: str
    path: str
    manifest: str | None = None
    verify: Literal["sizes", "checksums"] = "sizes"


class Preparation(WireAnswer, frozen=True, kw_only=True):
    """The checks that a host makes before it reports that it is ready. It starts nothing before its go."""

    disk_free_bytes: int = 0
    """What must be free where the job keeps its files and checkpoints."""
    quick_check_s: float = 0.0
    """For how long to compute known sums on the part's GPUs; 0: not at all."""
    is_simulated: bool = False
    """The part's GPUs are: this machine's driver, if it has one, knows none of them."""
    only_look: bool = False
    """It never starts: a preflight before placement, which ends once its checks are done."""
    meets: bool = False
    """Between being ready and its go it meets other hosts of its gang: it names a port as it says that it is ready."""


class Order(WireAnswer, frozen=True, kw_only=True):
    """All that a host needs to run its part of an attempt."""

    attempt_id: str
    job_id: str
    fence: int
    node_rank: int
    num_nodes: int
    ranks_per_node: int
    gpus: tuple[str, ...]
    launcher: str
    script: str | None
    args: tuple[str, ...]
    argv: tuple[str, ...]
    python: str | None
    working_dir: str | None
    env: dict[str, str]
    rendezvous: Rendezvous
    wall_time_s: float | None
    grace_s: float
    kill_grace_s: float
    """How long a program that is past its lease may take to end, whatever ``grace_s`` says."""
    log_limit_bytes_per_stream: int
    limits: PartLimits = field(default_factory=PartLimits)
    """Not in the orders of an older server."""
    tenant: str | None = None
    """Its name, by which a host keeps its secrets. None from an older server."""
    secrets: tuple[str, ...] = ()
    """Names, never values."""
    job_number: int | None = None
    """Of this job alone, from 1 on: a host chooses the user of its programs by it. None from an older server."""
    venv: str | None = None
    container: PartContainer | None = None
    """Neither is in the orders of an older server."""
    preparation: Preparation | None = None
    """None: start as it is granted."""
    datasets: tuple[PartDataset, ...] = ()
    dataset_look_s: float = 0.0
    """For how long the host may look at them before the program starts."""


class PreflightOrder(WireAnswer, frozen=True, kw_only=True):
    """Prepare what the order says as for an attempt, report what was found, and leave nothing behind.

    The order's ``attempt_id`` is the preflight's own id, and it has no GPU. ``within_s``: from the answer's receipt.
    """

    order: Order
    within_s: float


class AttemptPairwiseOrder(WireAnswer, frozen=True, kw_only=True):
    """One all-gather of a host's part with other hosts of its gang, before any of them starts its program."""

    attempt_id: str
    meet: PairwiseOrder


class ClaimAnswer(WireAnswer, frozen=True, kw_only=True):
    """Granted with an order, or refused with a reason: the host then forgets the attempt."""

    granted: bool
    order: Order | None = None
    lease_s: float = 0.0
    """Counted from the sending of the claim."""
    refusal: str | None = None


class HostReport(WireMessage, frozen=True, kw_only=True):
    """One step of a host's part: it is ready, has met others, started, exited (with its record), or is proved clean.

    A host that is not ready reports that by an exit record without a program.
    """

    kind: Literal["ready", "met", "started", "exited", "cleaned"]
    boot_id: BootId
    fence: PositiveFence
    record: dict[str, Any] = field(default_factory=dict)
    """``ready``: what was checked, and where the host is met. ``met``: a ``Met``. ``exited``: the supervisor's exit
    record. ``cleaned``: its proof.
    """


class ReportBatch(WireMessage, frozen=True, kw_only=True):
    protocol: int
    reports: Annotated[tuple[HostReport, ...], Meta(max_length=16)]


class ReportAnswer(WireAnswer, frozen=True, kw_only=True):
    accepted: int
    """How many had effect; a repeated report is a success without effect."""
    go: bool = False
    """As in a heartbeat's answer: this host was the last one to be ready."""
    meets: tuple[AttemptPairwiseOrder, ...] = ()
    """As in a heartbeat's answer, of this attempt."""
    takes: tuple[str, ...] = ()
    """As in a heartbeat's answer: ``TELLS_MEETINGS`` or nothing."""


class LogChunk(WireMessage, frozen=True, kw_only=True):
    """Bytes of one stream from ``offset`` on; base64 on the wire. Sending one twice has effect once."""

    stream: Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^(launcher|[0-9]{1,7})$")]
    offset: Count
    content: Annotated[bytes, Meta(max_length=1 << 18)]


class LogBatch(WireMessage, frozen=True, kw_only=True):
    protocol: int
    fence: PositiveFence
    chunks: Annotated[tuple[LogChunk, ...], Meta(max_length=64)]


class LogAnswer(WireAnswer, frozen=True, kw_only=True):
    stored: int
