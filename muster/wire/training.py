"""The reports of a job's ranks on their training, as their host relays them: by a tenant's code, not measured.

The lines are as in ``muster.train.report.wire``; a line that does not fit is counted and skipped, and never a reason
to stop.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from muster.wire.host import Count, PositiveFence
from muster.wire.messages import WireAnswer, WireMessage
from muster.wire.telemetry import Milliseconds

Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Text = Annotated[str, Meta(max_length=512)]
Step = Annotated[int, Meta(ge=0, lt=1 << 53)]
Generation = Annotated[str, Meta(pattern=r"^step-[0-9]{1,18}/gen-[0-9]{1,20}\Z")]
"""Folder of one generation of a checkpoint below the job's own: ``step-00000040/gen-4294967299``."""


class RankMessage(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Unknown fields are ignored: the runtime in a tenant's environment may be newer than the server."""


class Hello(RankMessage, frozen=True, kw_only=True, tag="hello"):
    rank: Annotated[int, Meta(ge=0, lt=1 << 31)]
    world_size: Annotated[int, Meta(ge=1, lt=1 << 31)]
    pid: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0


class StepDone(RankMessage, frozen=True, kw_only=True, tag="step"):
    """A step is done. ``step``: the number of done steps. ``loss`` is None where it was no finite number."""

    step: Step
    loss: Number | None = None
    step_s: Number | None = None


Seconds = Annotated[float, Meta(ge=0, le=1e300)]


class Pace(RankMessage, frozen=True, kw_only=True, tag="pace"):
    """The parts of the last ``num_steps`` steps, each part a mean per step: see ``muster.train.report.pace``.

    ``tokens_per_s``: of this rank's share of the work. ``memory_mib``: the maximum on its GPU, or in the process.
    ``collective_s``: null where ranks communicate within their passes, where it cannot be measured and is part of the
    others. ``samples``: of this rank in its attempt. ``padding``: the share of its input that only filled sequences up.
    """

    step: Step
    num_steps: Annotated[int, Meta(ge=1, lt=1 << 53)]
    data_s: Seconds
    forward_s: Seconds
    backward_s: Seconds
    collective_s: Seconds | None
    optimizer_s: Seconds
    other_s: Seconds
    checkpoint_s: Seconds
    tokens_per_s: Seconds | None = None
    grad_norm: Number | None = None
    memory_mib: Seconds | None = None
    mfu: Seconds | None = None
    hfu: Seconds | None = None
    samples: Step | None = None
    samples_per_step: Seconds | None = None
    tokens_per_step: Seconds | None = None
    padding: Annotated[float, Meta(ge=0, le=1)] | None = None


Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Version = Annotated[str, Meta(max_length=40)]


class Lineage(Struct, frozen=True, kw_only=True):
    """The origin of a checkpoint: see ``muster.train.checkpoint.lineage``. Null is unknown."""

    code_sha256: Sha256 | None = None
    git_commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40,64}\Z")] | None = None
    git_is_dirty: bool | None = None
    config_sha256: Sha256 | None = None
    spec_sha256: Sha256 | None = None
    data_sha256: Sha256 | None = None
    parent: Generation | None = None
    python_version: Version | None = None
    torch_version: Version | None = None
    world_size: Annotated[int, Meta(ge=1, lt=1 << 31)] | None = None


class SaveFault(Struct, frozen=True, kw_only=True):
    """The fault of a rank's save, and its place: see ``muster.train.checkpoint.save_faults``."""

    rank: Annotated[int, Meta(ge=0, lt=1 << 31)]
    kind: Literal["no_space", "read_only", "stale", "timeout", "refused", "io"]
    place: Annotated[str, Meta(min_length=1, max_length=256)]
    is_shared: bool


MOST_FAULTS: Final = 16
"""Of one save: our own runtime reports no more (``muster.train.checkpoint.save_faults``)."""


class CheckpointDone(RankMessage, frozen=True, kw_only=True, tag="checkpoint"):
    """The progress of a checkpoint.

    ``writing``: its files are being written. ``verified``: every file was read back equal after the commit.
    ``lineage``: a ``Lineage``, if it is one; ``faults``: each a ``SaveFault``, if it is one, up to ``MOST_FAULTS``. A
    part that does not fit must not lose the report of a checkpoint. ``place``: the file system or bucket of a committed
    one.
    """

    step: Step
    generation: Generation
    status: Literal["writing", "committed", "verified", "failed"]
    bytes: Count = 0
    seconds: Number = 0.0
    at_unix_ms: Milliseconds = 0
    manifest_sha256: Annotated[str, Meta(max_length=64)] = ""
    lineage: dict[str, Any] | None = None
    why: Text = ""
    faults: tuple[dict[str, Any], ...] = ()
    place: Annotated[str, Meta(max_length=256)] = ""


class CheckpointFound(RankMessage, frozen=True, kw_only=True, tag="checkpoint_found"):
    """One of an earlier attempt, read whole by this one, which its order did not name. The fields are as in
    ``CheckpointDone``.
    """

    step: Step
    generation: Generation
    bytes: Count = 0
    at_unix_ms: Milliseconds = 0
    manifest_sha256: Annotated[str, Meta(max_length=64)] = ""
    lineage: dict[str, Any] | None = None


class CheckpointRejected(RankMessage, frozen=True, kw_only=True, tag="checkpoint_rejected"):
    generation: Generation
    why: Text = ""


class CheckpointUnreadable(RankMessage, frozen=True, kw_only=True, tag="checkpoint_unreadable"):
    """Skipped this once, such as for a file system that does not answer: no fault of the checkpoint is stated."""

    generation: Generation
    why: Text = ""


class CheckpointScrubbed(RankMessage, frozen=True, kw_only=True, tag="checkpoint_scrubbed"):
    """Read again long after it was saved, and as it was saved."""

    generation: Generation


class CheckpointPinned(RankMessage, frozen=True, kw_only=True, tag="checkpoint_pinned"):
    """Its mark in the store was made, as the control plane requested; or was removed."""

    generation: Generation
    is_pinned: bool


class CheckpointExpired(RankMessage, frozen=True, kw_only=True, tag="checkpoint_expired"):
    """Its files were removed: newer ones are there."""

    generation: Generation


Span = Annotated[float, Meta(ge=0, le=1e15)]
"""Seconds, or a rate, that people are to read."""


class CheckpointInterval(RankMessage, frozen=True, kw_only=True, tag="checkpoint_interval"):
    """The interval at which the program saves from here on, and its basis: see ``muster.train.checkpoint.interval``."""

    step: Step
    interval_s: Span
    bound: Literal["none", "min", "max", "save"]
    stall_s: Span
    save_s: Span
    step_s: Span
    mtbf_s: Span
    failures_per_gpu_hour: Span
    num_gpus: Annotated[int, Meta(ge=1, lt=1 << 31)]


class Resumed(RankMessage, frozen=True, kw_only=True, tag="resumed"):
    """``generation`` is empty where training began from the start."""

    step: Step
    generation: Text = ""


class Warned(RankMessage, frozen=True, kw_only=True, tag="warning"):
    """A setting of the program that is most likely a mistake. It is reported with the job and stops nothing."""

    code: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,39}\Z")]
    message: Text


class ResizeRequested(RankMessage, frozen=True, kw_only=True, tag="resize"):
    """The program requests another number of hosts. The job's events answer a number that is not possible."""

    num_nodes: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]


class Outcome(RankMessage, frozen=True, kw_only=True, tag="outcome"):
    exit: Literal["done", "stopped_with_checkpoint", "stopped_without", "failed"]
    step: Step = 0
    message: Text = ""


AnyCheckpointMessage = (
    CheckpointDone
    | CheckpointFound
    | CheckpointRejected
    | CheckpointUnreadable
    | CheckpointScrubbed
    | CheckpointPinned
    | CheckpointExpired
)
"""About one generation."""
AnyRankMessage = (
    AnyCheckpointMessage | Hello | StepDone | Pace | CheckpointInterval | Resumed | Warned | ResizeRequested | Outcome
)


class TrainLine(WireMessage, frozen=True, kw_only=True):
    at_ms: Milliseconds
    rank: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None
    message: dict[str, Any]


class TrainBatch(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """Lines of one host's file from byte ``offset`` to ``next_offset``: a batch sent twice has effect once.

    ``num_skipped`` (``num_passed_over`` on the wire): the number of these lines that are left out, since the server had
    refused them.
    """

    protocol: int
    fence: PositiveFence
    offset: Count
    next_offset: Count
    lines: Annotated[tuple[TrainLine, ...], Meta(max_length=2_000)]
    num_skipped: Annotated[int, Meta(ge=0, le=2_000)] = field(name="num_passed_over", default=0)


class TrainAnswer(WireAnswer, frozen=True, kw_only=True):
    """The position of the server in the host's file: the next batch begins there.

    ``pinned``: exactly the generations of the job that retention must keep; None from a server without pins. It comes
    with the answer after which a program removes generations, so the program always has the newest list.
    """

    offset: int
    taken: int = 0
    pinned: tuple[str, ...] | None = None
