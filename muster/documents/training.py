"""A job's training: its checkpoints, ranks and steps, as the API answers them."""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Moment, OneOf, Page
from muster.domain.states import (
    CheckpointStatus,
)


class Lineage(TypedDict):
    """The origin of a checkpoint, as its program reports it; null is unknown.

    ``git_is_dirty``: a tracked file was changed since ``git_commit``. ``bundle``: the digest of the job's bundle.
    ``environments``: the digests of the environments that its hosts got, one for each kind of host.
    ``parent``: the generation that training continued from; null: from the start. ``outputs``: the digests of the
    outputs that hosts collected with it, as the list of the job's outputs has them.
    """

    code_sha256: str | None
    git_commit: str | None
    git_is_dirty: bool | None
    config_sha256: str | None
    spec_sha256: str | None
    bundle: NotRequired[str | None]
    environments: NotRequired[list[str]]
    outputs: NotRequired[list[str]]
    data_sha256: str | None
    parent: str | None
    python_version: str | None
    torch_version: str | None
    world_size: int | None


class Checkpoint(TypedDict):
    """A checkpoint. ``reason``: why it is REJECTED or TAINTED. ``lineage`` null: its runtime reported none.

    ``pinned_at``, ``pinned_by``: when it was pinned, and by which principal. ``pin_applied_at``: when its program
    marked it in its store; null while the pin is not yet delivered. ``scrubbed_at``: when it was last read again as a
    whole.
    """

    id: str
    attempt_id: str
    step: int
    generation: str
    status: Annotated[str, OneOf(CheckpointStatus)]
    reason: str | None
    bytes: int | None
    save_s: float | None
    committed_at: Moment | None
    verified_at: Moment | None
    lineage: NotRequired[Lineage | None]
    pinned_at: Moment | None
    pinned_by: str | None
    pin_applied_at: Moment | None
    scrubbed_at: Moment | None


class ChangedCheckpoint(Checkpoint, Trial):
    """The checkpoint after a change."""


class CheckpointPage(Page):
    items: list[Checkpoint]


class Pace(TypedDict):
    """The parts of the last ``num_steps`` steps, each the mean of a step, as a rank reports them.

    ``checkpoint_s`` is the delay by saves between steps. ``collective_s``: null where ranks communicate within their
    passes (FSDP, tensor parallelism), where it cannot be measured and is part of the others. ``tokens_per_s``: this
    rank's share of the job's. ``memory_mib``: the maximum of its tensors on the GPU; without one, the memory of its
    process. ``mfu`` and ``hfu`` are shares of 1, of its GPU's dense peak; null where the program did not state the cost
    of a token. ``samples``: the samples of this rank in this attempt; next to it the means of a step. ``padding``: the
    share of 1 that only filled sequences up. ``epochs``: that are done, with the part of the one in progress.
    ``own_s``: a step's time without ``wait_s``, the waits for other ranks; ``own_steps``: the plain steps of which
    these are means; ``place``: the same for ranks with the same work. ``cpu_wait_s``: ready without a processor;
    ``gc_s``: garbage collection; ``threads_s``: processor time of other threads; ``io_wait_s``: waiting for a disk.
    Null where the program did not report it; missing where its runtime is older.
    """

    num_steps: int
    data_s: float
    forward_s: float
    backward_s: float
    collective_s: float | None
    optimizer_s: float
    other_s: float
    checkpoint_s: float
    tokens_per_s: float | None
    grad_norm: float | None
    memory_mib: float | None
    mfu: float | None
    hfu: float | None
    samples: NotRequired[int | None]
    samples_per_step: NotRequired[float | None]
    tokens_per_step: NotRequired[float | None]
    padding: NotRequired[float | None]
    epochs: NotRequired[float | None]
    own_s: NotRequired[float | None]
    wait_s: NotRequired[float | None]
    own_steps: NotRequired[int | None]
    place: NotRequired[str | None]
    cpu_wait_s: NotRequired[float | None]
    gc_s: NotRequired[float | None]
    threads_s: NotRequired[float | None]
    io_wait_s: NotRequired[float | None]
    steal_share: NotRequired[float | None]
    switches_per_s: NotRequired[float | None]
    read_bytes_per_s: NotRequired[float | None]


class Rank(TypedDict):
    """The progress of a rank, as it reports it.

    ``warnings``: code → message, about likely mistakes of its program; the first rank reports them for all.
    """

    attempt_id: str
    rank: int
    node_id: str
    world_size: int | None
    step: int | None
    loss: float | None
    step_s: float | None
    outcome: str | None
    pace: Pace | None
    warnings: dict[str, str]
    updated_at: Moment


class RankPage(Page):
    items: list[Rank]


class Step(TypedDict):
    """``pace`` is reported about once a second, of the steps since its last report."""

    attempt_id: str
    step: int
    loss: float | None
    step_s: float | None
    pace: Pace | None
    at: Moment


class StepPage(TypedDict):
    """``next_after`` is null on the last page."""

    items: list[Step]
    next_after: int | None
