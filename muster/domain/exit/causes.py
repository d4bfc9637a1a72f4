"""Cause of an attempt's end → whose budget it counts against, what the job does next, and which hardware to avoid."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muster.domain.states import Cause, StopReason


class Budget(StrEnum):
    """The budget of restarts that a cause uses up. Infrastructure faults never count against the job."""

    NONE = "none"
    JOB = "job"
    INFRASTRUCTURE = "infrastructure"


class NextStep(StrEnum):
    """The next step of a job after its attempt: end well, end badly, wait for a person, or try again."""

    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    HOLD = "hold"
    RETRY_AT_ONCE = "retry_at_once"
    RETRY_AFTER_PAUSE = "retry_after_pause"


class Avoidance(StrEnum):
    """The GPUs or nodes that the next attempt avoids.

    ``GPUS``: the GPUs of the host at fault where it is known, and so the host. ``NODE``: without such GPUs, the whole
    host.
    """

    NOTHING = "nothing"
    GPUS = "gpus"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class CauseRule:
    budget: Budget
    next_step: NextStep
    avoid: Avoidance = Avoidance.NOTHING


_JOBS_OWN: Final = CauseRule(Budget.JOB, NextStep.RETRY_AFTER_PAUSE)
_MOVED: Final = CauseRule(Budget.INFRASTRUCTURE, NextStep.RETRY_AT_ONCE)

CAUSE_RULES: Final[Mapping[Cause, CauseRule]] = {
    Cause.SUCCEEDED: CauseRule(Budget.NONE, NextStep.SUCCEED),
    Cause.USER_ERROR: _JOBS_OWN,
    Cause.GPU_OOM: _JOBS_OWN,
    Cause.HOST_OOM: _JOBS_OWN,
    Cause.HANG: _JOBS_OWN,
    Cause.DIVERGED: _JOBS_OWN,
    Cause.CHECKPOINT_CORRUPT: _JOBS_OWN,
    Cause.CORRUPTION: CauseRule(Budget.INFRASTRUCTURE, NextStep.RETRY_AT_ONCE, Avoidance.GPUS),
    Cause.SAVE_FAILED: CauseRule(Budget.INFRASTRUCTURE, NextStep.RETRY_AFTER_PAUSE),
    Cause.NCCL_TIMEOUT: CauseRule(Budget.INFRASTRUCTURE, NextStep.RETRY_AFTER_PAUSE),
    Cause.GPU_FAULT: CauseRule(Budget.INFRASTRUCTURE, NextStep.RETRY_AT_ONCE, Avoidance.GPUS),
    Cause.NODE_LOST: CauseRule(Budget.INFRASTRUCTURE, NextStep.RETRY_AT_ONCE, Avoidance.NODE),
    Cause.LAUNCH_FAILED: CauseRule(Budget.INFRASTRUCTURE, NextStep.RETRY_AFTER_PAUSE, Avoidance.NODE),
    Cause.PREFLIGHT_FAILED: CauseRule(Budget.INFRASTRUCTURE, NextStep.RETRY_AFTER_PAUSE, Avoidance.NODE),
    Cause.RECLAIMED: _MOVED,
    Cause.EVACUATED: _MOVED,
    Cause.MAINTENANCE: _MOVED,
    Cause.RESIZE: _MOVED,
    Cause.HOT_SWAP: _MOVED,
    Cause.WALLTIME: CauseRule(Budget.NONE, NextStep.FAIL),
    Cause.BUDGET: CauseRule(Budget.NONE, NextStep.FAIL),
    Cause.IDLE: CauseRule(Budget.NONE, NextStep.HOLD),
    Cause.CANCELLED: CauseRule(Budget.NONE, NextStep.CANCEL),
}

INTERRUPTIONS: Final = (
    *(cause for cause, rule in CAUSE_RULES.items() if rule.avoid is not Avoidance.NOTHING),
    Cause.EVACUATED,
    Cause.MAINTENANCE,
    Cause.HOT_SWAP,
)
"""Causes that concern the GPUs and hosts of an attempt, and not its program."""

KEEPS_ITS_GPUS: Final = tuple(
    cause for cause in INTERRUPTIONS if CAUSE_RULES[cause].next_step is NextStep.RETRY_AT_ONCE
)
"""Interruptions after which its job continues at once, with the GPUs that are still good."""

ENDS_THE_SECOND_TIME: Final = frozenset({Cause.DIVERGED})
"""Causes that a restart from the same checkpoint repeats, unless chance or a passing fault of a GPU was the reason. The
second such end in a row, without a newer checkpoint between them, ends the job."""

HOLDS_THE_SECOND_TIME: Final = frozenset({Cause.SAVE_FAILED, Cause.CORRUPTION})
"""Causes whose restart costs the job nothing and repeats its work since the newest checkpoint. The second such end in a
row, without a newer checkpoint between them, holds the job until a person has repaired the storage, or has found
whether other GPUs or the program computed wrong."""

MATTERS_TWICE: Final = ENDS_THE_SECOND_TIME | HOLDS_THE_SECOND_TIME
"""Causes after which the job does something else at the second such end in a row."""

ADVICE: Final[Mapping[Cause, str]] = {
    Cause.GPU_OOM: "less GPU memory: take each batch in more and smaller pieces and accumulate their gradients",
    Cause.HOST_OOM: "host memory, not the GPU's: ask for more of it, or use fewer loader workers and smaller buffers",
    Cause.DIVERGED: "a restart from the same checkpoint repeats it: lower the learning rate, clip gradients, or check "
    "the data of that step",
    Cause.CORRUPTION: "find out whether a GPU or the program is wrong (`muster verdict list`), and release the job",
    Cause.IDLE: "find out what the program waits for, and release the job",
    Cause.SAVE_FAILED: "free space in the place of its checkpoints, or repair it, and release the job",
}
"""Advice to a tenant about a cause; stated where the job fails of it or is held."""

STOP_CAUSES: Final[Mapping[StopReason, Cause]] = {
    StopReason.RECLAIM: Cause.RECLAIMED,
    StopReason.CANCEL: Cause.CANCELLED,
    StopReason.EVACUATION: Cause.EVACUATED,
    StopReason.MAINTENANCE: Cause.MAINTENANCE,
    StopReason.WALLTIME: Cause.WALLTIME,
    StopReason.BUDGET: Cause.BUDGET,
    StopReason.HOT_SWAP: Cause.HOT_SWAP,
    StopReason.RESIZE: Cause.RESIZE,
    StopReason.HANG: Cause.HANG,
    StopReason.IDLE: Cause.IDLE,
}
"""The cause of an attempt that ended because it was asked to stop."""

HAD_TO_LEAVE: Final = (*KEEPS_ITS_GPUS, Cause.RESIZE)
"""Causes of attempts that others ended, so that the job has a right to a place again."""
GOES_ON_THERE: Final = tuple(reason for reason, cause in STOP_CAUSES.items() if cause in KEEPS_ITS_GPUS)
"""Reasons of stop requests after which a job continues with its good GPUs: no other job may count on them."""
