"""The host protocol: heartbeat, claim, report, logs. Every order and report carries the attempt's fence.

Fields with a ``name`` have that name on the wire, as in the release before (decision 48).

A wake-up over the broker carries nothing but "heartbeat now". The heartbeat's answer lists a host's unclaimed attempts,
stop orders and attempts to forget, so that losing the broker loses nothing (I20).
Durations cross the wire, never wall-clock deadlines: host and server clocks need not agree.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, convert, field

from muster.wire.meeting import PairwiseOrder
from muster.wire.messages import WireAnswer, WireMessage

PROTOCOL_VERSION: Final = 1

STORABLE: Final = r"^[^\x00]*\Z"
"""PostgreSQL keeps no U+0000 in a text."""
BootId = Annotated[str, Meta(min_length=1, max_length=64, pattern=STORABLE)]
ShortText = Annotated[str, Meta(max_length=128, pattern=STORABLE)]
PositiveFence = Annotated[int, Meta(gt=0, le=(1 << 63) - 1)]
SEALED_SECRETS: Final = "sealed_secrets"
LAID_SECRETS: Final = "laid_secrets"
"""Listed in heartbeats alone, by a host whose operator keeps secrets as files on it."""
PACKAGES: Final = "packages"
"""Listed in heartbeats alone, by a host with a package index or a wheelhouse: it builds environments."""
SOURCE_PACKAGES: Final = "source_packages"
"""Listed in heartbeats alone, by a host that builds source distributions too."""
HOST_CAPABILITIES: Final = (
    *("bundle", "container", "datasets", "environment", "git", "look", "outputs", "ready"),
    *(SEALED_SECRETS, "secret_variables", "secrets", "venv"),
)
"""Capabilities of a host of this release beyond the first release's orders. Heartbeats and claims list them."""
CAPABILITIES_FIELD: Final = "knows"
PREFLIGHTS_FIELD: Final = "looks"
TAKEN_IN_HEARTBEATS: Final = (CAPABILITIES_FIELD, PREFLIGHTS_FIELD)
"""Wire names of the heartbeat's fields that the first release did not have. A host sends a field only if the server's
``takes`` has its name.
"""
PAIRWISE_CAPABILITY: Final = "meets"
"""An entry in ``takes`` of a server whose answers list pairwise orders. Without it an empty list has no meaning."""
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]


class HostAttempt(WireMessage, frozen=True, kw_only=True):
    """An attempt of which the host keeps a record, with its phase on this host."""

    attempt_id: ShortText
    fence: PositiveFence
    phase: Literal["claimed", "started", "exited", "clean"]


class PreflightReport(WireMessage, frozen=True, kw_only=True):
    """The result of a preflight before placement, repeated in every heartbeat until the server lists it no longer.

    ``unfit``: the job's tenant has to supply something. ``unable``: this host could not decide, or lacks something that
    another host may have. The names of the checks that the preflight made come last.
    """

    preflight_id: ShortText = field(name="look_id")
    found: Literal["fit", "unfit", "unable"]
    why: Annotated[str, Meta(max_length=4096, pattern=STORABLE)] = ""
    checked: Annotated[tuple[ShortText, ...], Meta(max_length=64)] = field(name="looked_at", default=())


class HeartbeatRequest(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """The heartbeat of a host. Empty fields are omitted: an older server refuses a field that it does not know."""

    protocol: int
    boot_id: BootId
    seq: Count
    attempts: tuple[HostAttempt, ...] = field(name="held", default=())
    is_woken: bool = field(name="rung", default=False)
    """Whether a wake-up over the broker caused this heartbeat (for the figures only)."""
    capabilities: Annotated[tuple[ShortText, ...], Meta(max_length=64)] = field(name=CAPABILITIES_FIELD, default=())
    """Values of ``HOST_CAPABILITIES``. Empty from an older host."""
    preflights: Annotated[tuple[PreflightReport, ...], Meta(max_length=64)] = field(name=PREFLIGHTS_FIELD, default=())


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
    """Attempts that the server knows as clean: the host may remove their records."""
    go: tuple[str, ...] = ()
    """Attempts all of whose hosts are ready: the program may start. Empty from an older server."""
    preflights: tuple["PreflightOrder", ...] = field(name="looks", default=())
    """Preflights to run now, without any GPU. The host may forget a reported preflight that is not listed any more."""
    pairwise_orders: tuple["AttemptPairwiseOrder", ...] = field(name="meets", default=())
    """Current all-gathers of the host's parts with other hosts. One that is listed no more is called off."""
    takes: tuple[str, ...] = ()
    """``TAKEN_IN_HEARTBEATS`` of this server, and ``PAIRWISE_CAPABILITY``. Empty from an older one, which refuses a
    heartbeat that has more.
    """


class ClaimRequest(WireMessage, frozen=True, kw_only=True):
    protocol: int
    boot_id: BootId
    fence: PositiveFence
    nonce: ShortText
    capabilities: Annotated[tuple[ShortText, ...], Meta(max_length=64)] = field(name=CAPABILITIES_FIELD, default=())
    """Values of ``HOST_CAPABILITIES``, and capabilities of newer releases. Empty from an older host."""


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


class PartGit(WireAnswer, frozen=True, kw_only=True):
    """The commit that a part's bundle is made from. ``key``: by which it is made once for the tenant.

    ``commit``: its whole id. ``secret``: the name of the tenant's secret that opens the repository; the host that makes
    the bundle asks for it. ``build_s``: how long the host may take to have the bundle made, by itself or by another
    one. ``max_bytes``, ``max_files``: of the commit.
    """

    key: str
    url: str
    commit: str
    secret: str | None = None
    build_s: float
    max_bytes: int
    max_files: int


class PartBundle(WireAnswer, frozen=True, kw_only=True):
    """The bundle of a part: a folder of its tenant, by digest.

    ``fetch_s``: how long the host may take to get it. ``disk_free_bytes``: what must then still be free on its disk.
    ``git``: what it is made from; ``digest`` is empty then. Only a host that lists ``git`` gets that, in a preflight.
    """

    digest: str
    tenant_id: str
    fetch_s: float
    disk_free_bytes: int = 0
    git: PartGit | None = None


class PartEnvironment(WireAnswer, frozen=True, kw_only=True):
    """The environment of a part, from a lock file of its bundle. The first five fields are as in the specification.

    ``build_s``: how long the host may take, after the bundle is there, to get it: to build it, to wait until another
    part has built it, or to fetch it.
    """

    lock: str
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    from_host: tuple[str, ...] = ()
    allows_source: bool = False
    build_s: float = 900.0


class PartOutputs(WireAnswer, frozen=True, kw_only=True):
    """What the host keeps of a part: all of its output folder, and what ``patterns`` match in the working folder.

    ``patterns``: relative, with ``*``, ``?``, and ``**`` for any depth.
    ``max_bytes``, ``max_files``: of one collection.
    """

    patterns: tuple[str, ...] = ()
    max_bytes: int
    max_files: int


class Preparation(WireAnswer, frozen=True, kw_only=True):
    """The checks that a host makes before it reports that it is ready. It starts nothing before its go."""

    disk_free_bytes: int = 0
    """What must be free where the job keeps its files and checkpoints."""
    quick_check_s: float = 0.0
    """For how long to compute known sums on the part's GPUs; 0: not at all."""
    is_simulated: bool = False
    """The part's GPUs are simulated: this machine's driver, if it has one, knows none of them."""
    is_preflight_only: bool = field(name="only_look", default=False)
    """The program never starts: a preflight before placement, which ends once its checks are done."""
    has_pairwise_check: bool = field(name="meets", default=False)
    """Between ready and go the part takes part in its gang's pairwise check. Its ready report states a port for it."""


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
    sealed_secrets: tuple[str, ...] = ()
    """The part of ``secrets`` that the host asks the server for; the others are files of its operator's."""
    secret_variables: dict[str, str] = field(default_factory=dict)
    """Variable of the program → the secret whose value it has. Each secret is a file for the program too."""
    job_number: int | None = None
    """Of this job alone, from 1 on: a host chooses the user of its programs by it. None from an older server."""
    venv: str | None = None
    container: PartContainer | None = None
    """Neither is in the orders of an older server."""
    preparation: Preparation | None = None
    """None: start as it is granted."""
    datasets: tuple[PartDataset, ...] = ()
    dataset_check_s: float = field(name="dataset_look_s", default=0.0)
    """For how long the host may check the datasets before the program starts."""
    watch: dict[str, Any] | None = None
    """The policy's section of that name. None from an older server: the host's built-in one."""
    durations: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """How long the phases of the job's earlier attempts took. None are in the orders of an older server."""
    bundle: PartBundle | None = None
    """With it ``script``, ``working_dir`` and the first word of ``argv`` may be relative to its folder."""
    environment: PartEnvironment | None = None
    """With it the program runs by the environment's interpreter. Never without ``bundle``."""
    outputs: PartOutputs | None = None
    """None: nothing is collected, as in a preflight, and for an order of an older server."""


class PreflightOrder(WireAnswer, frozen=True, kw_only=True):
    """An order to prepare as for an attempt, report the result, and leave nothing behind.

    The order's ``attempt_id`` is the preflight's own id, and it has no GPU. ``within_s``: from the answer's receipt.
    """

    order: Order
    within_s: float


class AttemptPairwiseOrder(WireAnswer, frozen=True, kw_only=True):
    """One all-gather of a host's part with other hosts of its gang, before any of them starts its program."""

    attempt_id: str
    order: PairwiseOrder = field(name="meet")


class ClaimAnswer(WireAnswer, frozen=True, kw_only=True):
    """Granted with an order, or refused with a reason: the host then forgets the attempt."""

    granted: bool
    order: Order | None = None
    lease_s: float = 0.0
    """Counted from the sending of the claim."""
    refusal: str | None = None


class SecretsRequest(WireMessage, frozen=True, kw_only=True):
    """A host's question for the secrets of a part that it has claimed.

    ``public_key``: X25519, made for this question alone; only its holder opens the answer.
    """

    protocol: int
    boot_id: BootId
    fence: PositiveFence
    public_key: Annotated[bytes, Meta(min_length=32, max_length=32)]


class SecretsAnswer(WireAnswer, frozen=True, kw_only=True):
    """The secrets of one part. ``sealed``: as ``wire.sealed_secrets`` says. ``missing``: names that no longer exist."""

    public_key: bytes
    sealed: bytes
    missing: tuple[str, ...] = ()


class HostReport(WireMessage, frozen=True, kw_only=True):
    """One step of a host's part: ready, pairwise result, started, exited (with its record), or proved clean.

    A host that is not ready reports that by an exit record without a program.
    """

    kind: Literal["ready", "met", "started", "exited", "cleaned"]
    boot_id: BootId
    fence: PositiveFence
    record: dict[str, Any] = field(default_factory=dict)
    """``ready``: the names of the checks, and the port for a pairwise check. ``met``: a ``PairwiseResult``. ``exited``:
    the supervisor's exit record. ``cleaned``: its proof.
    """


class ReportBatch(WireMessage, frozen=True, kw_only=True):
    protocol: int
    reports: Annotated[tuple[HostReport, ...], Meta(max_length=16)]


class ReportAnswer(WireAnswer, frozen=True, kw_only=True):
    accepted: int
    """The number of reports that had effect; a repeated report is a success without effect."""
    go: bool = False
    """As in a heartbeat's answer: this host was the last one to be ready."""
    pairwise_orders: tuple[AttemptPairwiseOrder, ...] = field(name="meets", default=())
    """As in a heartbeat's answer, of this attempt."""
    takes: tuple[str, ...] = ()
    """As in a heartbeat's answer: ``PAIRWISE_CAPABILITY`` or nothing."""


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
