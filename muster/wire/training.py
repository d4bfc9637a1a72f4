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
    ``epochs``: that are done, with the part of the one in progress. ``skipped_steps``: of a gradient scaler. ``own_s``,
    ``wait_s``: own compute and waits for other ranks, over ``own_steps`` plain steps; ``place``: the same for ranks
    with the same work. The rest explains a slow rank: see ``muster.train.report.host_signals``.
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
    epochs: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    skipped_steps: Step | None = None
    own_s: Seconds | None = None
    wait_s: Seconds | None = None
    own_steps: Step | None = None
    place: Annotated[str, Meta(max_length=64)] | None = None
    cpu_wait_s: Seconds | None = None
    gc_s: Seconds | None = None
    threads_s: Seconds | None = None
    io_wait_s: Seconds | None = None
    steal_share: Annotated[float, Meta(ge=0, le=1)] | None = None
    switches_per_s: Seconds | None = None
    read_bytes_per_s: Seconds | None = None


Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Version = Annotated[str, Meta(max_length=40)]


class Lineage(Struct, frozen=True, kw_only=True):
    """The origin of a checkpoint: see ``muster.train.checkpoint.lineage``. Null is unknown.

    ``bundle``, ``environments``: as the control plane knows them, whatever was reported. Digests of their folders; of
    environments there is one for each kind of host.
    """

    code_sha256: Sha256 | None = None
    git_commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40,64}\Z")] | None = None
    git_is_dirty: bool | None = None
    config_sha256: Sha256 | None = None
    spec_sha256: Sha256 | None = None
    bundle: Sha256 | None = None
    environments: tuple[Sha256, ...] = ()
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
    """``generation`` is empty where training began from the start. ``restore_s``: how long the restore took, until
    this report; an older runtime does not report it.
    """

    step: Step
    generation: Text = ""
    restore_s: Seconds | None = None


class Warned(RankMessage, frozen=True, kw_only=True, tag="warning"):
    """A setting of the program that is most likely a mistake. It is reported with the job and stops nothing."""

    code: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,39}\Z")]
    message: Text


FaultyRanks = Annotated[tuple[Annotated[int, Meta(ge=0, lt=1 << 31)], ...], Meta(max_length=16)]


class Spiked(RankMessage, frozen=True, kw_only=True, tag="spike"):
    """A loss or a gradient norm far above the usual ones. It stops nothing.

    A checkpoint is GOOD only enough steps after it. ``is_shown``: it is worth an event, as the first of a row is. An
    older runtime reports no others.
    """

    step: Step
    what: Literal["loss", "grad_norm"]
    value: Number
    usual: Number
    length: Annotated[int, Meta(ge=1, lt=1 << 31)] = 1
    is_shown: bool = True


class ValueFault(RankMessage, frozen=True, kw_only=True, tag="value_fault"):
    """A value is not finite. ``step``: the first one whose state is not to be trusted."""

    step: Step
    ranks: FaultyRanks = ()
    reason: Text = ""


class ReplicaFault(RankMessage, frozen=True, kw_only=True, tag="replica_fault"):
    """Copies of one tensor differ between ranks. ``since``: the step at which they last agreed.

    ``is_of_buffers``: no copy differs that the program may not change on one rank alone. ``is_of_compute``: not copies
    differ but results of one micro-batch.
    """

    step: Step
    since: Step
    verdict: Literal["corruption", "divergence"]
    ranks: FaultyRanks = ()
    tensor: Text = ""
    num_tensors: Annotated[int, Meta(ge=1, lt=1 << 31)] = 1
    num_copies: Annotated[int, Meta(ge=2, lt=1 << 31)] = 2
    is_of_buffers: bool = False
    is_of_compute: bool = False
    reason: Text = ""


class RolledBack(RankMessage, frozen=True, kw_only=True, tag="rolled_back"):
    """All ranks restored a checkpoint in place, and train on. ``skipped_from`` and ``skipped_to``: samples.

    ``skipped``: what is skipped as text, also samples of streams; empty: nothing, or an older runtime reports.
    """

    from_step: Step
    step: Step
    generation: Generation
    cause: Literal["value_fault", "replica_fault"]
    number: Annotated[int, Meta(ge=1, lt=1 << 31)] = 1
    budget: Annotated[int, Meta(ge=1, lt=1 << 31)] = 1
    skipped_from: Step = 0
    skipped_to: Step = 0
    skipped: Text = ""


RankNumber = Annotated[int, Meta(ge=0, lt=1 << 31)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{1,16}\Z")]
RankLosses = Annotated[tuple[tuple[Step, Digest], ...], Meta(max_length=48)]
RankResult = tuple[RankNumber, Digest, RankLosses]
"""Rank, digest of its state after the last step, and digests of its losses: single ones from before the first step that
is not to be trusted, and from there on one of all losses up to each of some steps.
"""


class Rerun(RankMessage, frozen=True, kw_only=True, tag="rerun"):
    """The suspect steps after ``from_step`` up to ``step`` were done again, in place or on other GPUs.

    ``fault``: its kind. ``is_again``: it came again, after ``end_step``. ``found``: what the ranks found in place.
    ``results``: of the first time in place, of this time elsewhere. ``operation``: a ``SuspectOperation``, if it is
    one: a part that does not fit must not lose the message.
    """

    step: Step
    from_step: Step
    end_step: Step
    first_bad: Step
    place: Literal["in_place", "elsewhere"]
    fault: Literal["replica_fault", "value_fault"] = "replica_fault"
    found: Literal["", "transient", "repeated", "again", "undecided"] = ""
    is_again: bool
    ranks: FaultyRanks = ()
    num_ranks: Annotated[int, Meta(ge=1, lt=1 << 31)]
    results: Annotated[tuple[RankResult, ...], Meta(max_length=32)] = ()
    tensor: Text = ""
    operation: dict[str, Any] | None = None
    reason: Text = ""


class ResizeRequested(RankMessage, frozen=True, kw_only=True, tag="resize"):
    """The program requests another number of hosts. The job's events answer a number that is not possible."""

    num_nodes: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]


class Stalled(RankMessage, frozen=True, kw_only=True, tag="stalled"):
    """No rank of a host makes progress. The host itself states it, in a line without a rank.

    ``is_over``: the ranks make progress again after ``still_s``. ``limit_s``: the limit that was passed. ``ranks``: the
    ranks that are behind. ``report``: a host report's document (``watch.forensics.documents``), if it is one; a part
    that does not fit must not lose the message.
    """

    node: Annotated[str, Meta(max_length=64)]
    is_over: bool = False
    phase: Annotated[str, Meta(max_length=20)] = ""
    step: Step = 0
    still_s: Seconds = 0.0
    limit_s: Seconds = 0.0
    ranks: Annotated[tuple[Annotated[int, Meta(ge=0, lt=1 << 31)], ...], Meta(max_length=1_024)] = ()
    report: dict[str, Any] | None = None


class Learnt(RankMessage, frozen=True, kw_only=True, tag="learnt"):
    """How long the phases of a host's ranks have taken, in seconds, for the job's next attempt.

    The host itself states it, in a line without a rank. A phase that the server does not know is left out.
    """

    durations: Annotated[
        dict[Annotated[str, Meta(max_length=20)], Annotated[tuple[Seconds, ...], Meta(max_length=64)]],
        Meta(max_length=32),
    ]


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
AnyValueMessage = Spiked | ValueFault | ReplicaFault | RolledBack | Rerun
"""About the values of the training."""
AnyRankMessage = (
    AnyCheckpointMessage
    | AnyValueMessage
    | Hello
    | StepDone
    | Pace
    | CheckpointInterval
    | Resumed
    | Warned
    | ResizeRequested
    | Stalled
    | Learnt
    | Outcome
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


class LineFindingMessage(Struct, frozen=True, kw_only=True):
    """A line about a fault in a rank's output (``workers.host.line_findings``). ``name``: its row in the fault table.

    With the name ``nccl.transport`` it states what NCCL chose: ``transport``, ``cards``, ``has_no_rdma_card``.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    at_ms: Milliseconds
    rank: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None
    text: Annotated[str, Meta(max_length=1_000)] = ""
    host: Annotated[str, Meta(max_length=64)] = ""
    peer: Annotated[str, Meta(max_length=80)] = ""
    port: Annotated[int, Meta(ge=0, le=99_999)] = 0
    hca: Annotated[str, Meta(max_length=32)] = ""
    transport: Annotated[str, Meta(max_length=16)] = ""
    cards: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(max_length=64)] = ()
    has_no_rdma_card: bool = False


class FindingsBatch(WireMessage, frozen=True, kw_only=True):
    """Findings of one host's file from byte ``offset`` to ``next_offset``: a batch sent twice has effect once.

    ``findings``: each as ``LineFindingMessage``. One that cannot be read is skipped: a program wrote its words.
    """

    protocol: int
    fence: PositiveFence
    offset: Count
    next_offset: Count
    findings: Annotated[tuple[dict[str, Any], ...], Meta(max_length=500)]


class FindingsAnswer(WireAnswer, frozen=True, kw_only=True):
    """The position of the server in the host's file: the next batch begins there."""

    offset: int


class TrainAnswer(WireAnswer, frozen=True, kw_only=True):
    """The position of the server in the host's file: the next batch begins there.

    ``pinned``: exactly the generations of the job that retention must keep; None from a server without pins. It comes
    with the answer after which a program removes generations, so the program always has the newest list.
    """

    offset: int
    taken: int = 0
    pinned: tuple[str, ...] | None = None
