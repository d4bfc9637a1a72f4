"""A job as it is submitted, or as a plan is requested for it."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class Mount(TypedDict):
    """A mount of the host's path ``source`` in the container, at ``target`` or at the same path."""

    source: str
    target: NotRequired[str | None]
    read_only: NotRequired[bool]


class Container(TypedDict):
    """A container in which the program runs."""

    image: str
    engine: NotRequired[Literal["podman", "docker", "enroot"] | None]
    mounts: NotRequired[list[Mount]]
    user: NotRequired[str | None]


class Environment(TypedDict):
    """A Python environment that is built once from a lock file of the bundle, and is the same on each host."""

    lock: str
    extras: NotRequired[list[str]]
    groups: NotRequired[list[str]]
    from_host: NotRequired[list[str]]
    allows_source: NotRequired[bool]


class GitSource(TypedDict):
    """A commit of a git repository, whose files become the job's bundle."""

    url: str
    commit: str
    secret: NotRequired[str | None]


class Program(TypedDict):
    """``torchrun`` runs ``script`` with ``args`` once a rank; ``command`` runs ``argv`` once a node. Never a shell.

    By the host's interpreter, by ``python``, by that of ``venv`` or of ``environment``, or in ``container``.
    """

    bundle: NotRequired[str | None]
    git: NotRequired[GitSource | None]
    launcher: NotRequired[Literal["torchrun", "command"]]
    script: NotRequired[str | None]
    args: NotRequired[list[str]]
    argv: NotRequired[list[str]]
    working_dir: NotRequired[str | None]
    python: NotRequired[str | None]
    venv: NotRequired[str | None]
    container: NotRequired[Container | None]
    environment: NotRequired[Environment | None]
    env: NotRequired[dict[str, str]]


class Shape(TypedDict):
    nodes: NotRequired[int]
    gpus_per_node: NotRequired[int]
    ranks_per_node: NotRequired[int | None]
    min_nodes: NotRequired[int | None]
    max_nodes: NotRequired[int | None]
    gpus: NotRequired[int | None]


class SliceRule(TypedDict):
    """Each ``ranks`` consecutive ranks are in one domain of ``level``."""

    level: str
    ranks: int


class TopologyRule(TypedDict):
    required: NotRequired[str | None]
    preferred: NotRequired[str | None]
    slices: NotRequired[list[SliceRule]]
    balance: NotRequired[str | None]


class ParallelLayout(TypedDict):
    """``pp`` × ``dp`` × ``fsdp`` × ``tp`` ranks, the last varying fastest."""

    tp: NotRequired[int]
    fsdp: NotRequired[int]
    dp: NotRequired[int]
    pp: NotRequired[int]
    allow_tp_across_nodes: NotRequired[bool]


class NodeLabelRule(TypedDict):
    """Values by a label's name: a host has one of these, or none of these."""

    required: NotRequired[dict[str, list[str]]]
    forbidden: NotRequired[dict[str, list[str]]]


class Restart(TypedDict):
    max_restarts: NotRequired[int]
    gpu_oom_doublings: NotRequired[int]


class CheckpointRule(TypedDict):
    folder: NotRequired[str | None]
    store: NotRequired[str | None]
    credentials: NotRequired[str | None]
    encryption_keys: NotRequired[str | None]


class HostLimits(TypedDict):
    memory_bytes: NotRequired[int | None]
    pids: NotRequired[int | None]
    cpus: NotRequired[float | None]
    io_read_bytes_per_s: NotRequired[int | None]
    io_write_bytes_per_s: NotRequired[int | None]


class Dataset(TypedDict):
    """``manifest`` null: the folder's own, where it has one."""

    name: str
    path: str
    manifest: NotRequired[str | None]
    verify: NotRequired[Literal["sizes", "checksums"]]


class _JobFields(TypedDict):
    """The fields of a job that may be omitted."""

    shape: NotRequired[Shape]
    topology: NotRequired[TopologyRule]
    layout: NotRequired[ParallelLayout | None]
    node_labels: NotRequired[NodeLabelRule]
    tier: NotRequired[str]
    job_class: NotRequired[str | None]
    restart: NotRequired[Restart]
    checkpoint: NotRequired[CheckpointRule]
    limits: NotRequired[HostLimits]
    secrets: NotRequired[list[str]]
    secret_env: NotRequired[dict[str, str]]
    datasets: NotRequired[list[Dataset]]
    outputs: NotRequired[list[str]]
    wall_time_s: NotRequired[float | None]
    budget_gpu_hours: NotRequired[float | None]
    stop_grace_s: NotRequired[float | None]
    on_node_loss: NotRequired[Literal["wait", "fenced"] | None]
    on_hang: NotRequired[Literal["restart", "hold", "notify"] | None]
    on_straggler: NotRequired[Literal["notify", "swap"] | None]
    on_value_fault: NotRequired[str | None]
    rerun_exit_codes: NotRequired[Literal["megatron", "own"] | None]
    labels: NotRequired[dict[str, str]]
    tenant_id: NotRequired[str | None]
    copied_from: NotRequired[str | None]


class JobSubmission(_JobFields):
    """A job as it is submitted. ``tenant_id`` is for operators, who submit for a tenant.

    ``copied_from``: the id of the job that this one is a copy of.
    """

    name: str
    program: Program


class JobQuestion(_JobFields):
    """A job as it might be submitted. Its expected run time follows from other jobs of its name."""

    name: NotRequired[str]
    program: NotRequired[Program]
