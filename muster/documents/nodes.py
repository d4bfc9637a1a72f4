"""Nodes, as the API answers them."""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Json, Moment, OneOf, Page
from muster.documents.fleet import Cordon, Incident
from muster.documents.gpus import Gpu
from muster.domain.states import AllocationState, AttemptState, Contact, StopReason


class Node(TypedDict):
    """A node.

    ``num_cordons``: its own cordons in force. ``num_assigned_gpus``: assigned GPUs, until they are proved clean.

    ``standings``: its GPUs by their own standing. ``effective_standings``: by the standing by which placement treats
    them. ``num_cordoned_gpus``: GPUs that a cordon of their own or of the node keeps out of new placements.
    """

    id: str
    name: str
    contact: Annotated[str, OneOf(Contact)]
    boot_id: str | None
    last_heartbeat_at: Moment | None
    address: str
    num_gpus: int
    num_assigned_gpus: int
    standings: dict[str, int]
    effective_standings: dict[str, int]
    num_cordons: int
    num_cordoned_gpus: int
    is_simulated: bool
    rack: str | None
    labels: Json


class NodePage(Page):
    items: list[Node]


class Place(TypedDict):
    level: str
    name: str


class NodeAgent(TypedDict):
    """The agent of a node. ``clock_skew_s``: the arrival of its newest report less the agent's own time."""

    version: str | None
    driver_version: str | None
    boot_id: str | None
    reported_at: Moment | None
    received_at: Moment | None
    clock_skew_s: float
    cpu_percent: float | None
    memory_used_mib: float | None
    spool_reports: int | None
    spool_bytes: int | None


class NodeJob(TypedDict):
    """A job that has GPUs there; ``state`` is the allocation's."""

    job_id: str
    job_name: str
    tenant_id: str
    tier: str
    attempt_id: str
    attempt_number: int
    attempt_state: Annotated[str, OneOf(AttemptState)]
    stop_reason: Annotated[str, OneOf(StopReason)] | None
    stop_deadline_at: Moment | None
    state: Annotated[str, OneOf(AllocationState)]
    gpus: list[str]


class Drain(TypedDict):
    """A drain. ``cordon_id``: release it to end the drain. ``jobs_left``: jobs that still have GPUs there."""

    cordon_id: str
    reason: str
    owner: str
    began_at: Moment
    until: Moment | None
    jobs_left: list[str]
    is_done: bool


class FailingSaves(TypedDict):
    """Failed saves of a job from this node at a place, as its programs report, with too few successful ones since.

    ``place``: a bucket, the source of a file system that hosts share (``is_shared``), or the host's own mount.
    """

    place: str
    is_shared: bool
    kind: str
    job_id: str
    num_failures: int
    first_at: Moment
    last_at: Moment


class NetworkPort(TypedDict):
    """A network port that is up, in the newest report of its host's agent."""

    name: str
    sent_bytes_per_s: float
    received_bytes_per_s: float
    link_gbps: float | None
    saturation: float | None


class NodeDetail(Node):
    """A node in detail.

    ``path``: its known place in the tree, widest first. ``agent``: null until its agent has reported.

    ``rdma_ports``: InfiniBand and RoCE ports of the enrolled inventory. ``drain``: null while the node is not drained.

    ``network_ports``: with their rates since the report before; an agent of an earlier release reports none.
    """

    version: int
    path: list[Place]
    enrolled_at: Moment
    lease_renewed_at: Moment | None
    agent: NodeAgent | None
    driver_versions: list[str]
    rdma_ports: list[str]
    network_ports: list[NetworkPort]
    gpus: list[Gpu]
    cordons: list[Cordon]
    jobs: list[NodeJob]
    drain: Drain | None
    failing_saves: list[FailingSaves]
    incidents: list[Incident]


class NewDrain(TypedDict):
    """A drain to start."""

    reason: str
    until: NotRequired[Moment | None]
    deadline_s: NotRequired[float | None]
    despite_budget: NotRequired[str | None]


class LabelChange(TypedDict):
    """A change of labels."""

    labels: NotRequired[dict[str, str]]
    remove: NotRequired[list[str]]
    reason: str


class ChangedNode(NodeDetail, Trial):
    """The node after a change."""


class NodeExportPage(Page):
    """A page of an export. ``items``: records by their ``type``, as `muster health replay` reads them."""

    items: list[Json]
