"""The control plane's own figures, as the API answers them."""

from typing_extensions import TypedDict

from muster.documents.fields import Moment
from muster.documents.gpus import Breaker


class Waiting(TypedDict):
    """A queue. ``oldest_age_s``: how long its first item has waited; null where it is empty."""

    num: int
    oldest_age_s: float | None


class Sequence(Waiting):
    """A sequence. ``position``: the last one that was assigned."""

    position: int


class Outbox(Waiting):
    """The outbox. ``num_dead``: messages that were given up."""

    num_dead: int


class Signals(Waiting):
    """The signals to judge. ``num_set_aside``: signals that could not be judged, and are tried again."""

    num_set_aside: int


class Heartbeats(TypedDict):
    """Nodes by contact, and the ages of the last heartbeats of nodes that ever sent one."""

    num_live: int
    num_silent: int
    num_lost: int
    max_age_s: float | None
    median_age_s: float | None
    p99_age_s: float | None


class Ingest(TypedDict):
    """The reports of the last minute that were stored, and the GPUs in them."""

    reports_last_minute: int
    gpus_last_minute: int
    newest_age_s: float | None


class Scheduler(TypedDict):
    """The scheduler. ``is_active``: a process runs its cycles now. ``queued``: pending jobs."""

    is_active: bool
    queued: Waiting


class SystemLoop(TypedDict):
    """A loop of the control plane. ``age_s``: of its newest progress in any process; null: none has reported it.

    ``started_by``: the command whose process runs it.
    """

    name: str
    started_by: str
    age_s: float | None
    is_stalled: bool


class Schema(TypedDict):
    revision: str
    needed: str
    is_current: bool


class System(TypedDict):
    """The state of the control plane.

    ``accepts_heartbeats_since``: since when heartbeats have been accepted without a gap; no lease ends in the first
    minutes after.
    """

    at: Moment
    version: str
    database_version: str
    schema: Schema
    api_alive_at: Moment | None
    accepts_heartbeats_since: Moment | None
    heartbeats: Heartbeats
    ingest: Ingest
    scheduler: Scheduler
    outbox: Outbox
    sequencer: Sequence
    sealer: Sequence
    judge: Signals
    loops: list[SystemLoop]
    breakers: list[Breaker]
