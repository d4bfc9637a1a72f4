"""The rate at which the fleet's GPUs fail under a job: the expected rate, corrected by the observed failures."""

from dataclasses import dataclass
from typing import Final

from muster.domain.policy.training import CheckpointIntervalPolicy
from muster.domain.states import Cause

FAILURES: Final = (Cause.GPU_FAULT, Cause.NODE_LOST, Cause.EVACUATED)
"""The causes that count as a failure of the infrastructure during an attempt's work.

Left out: notices and drains, which leave time to save; attempts that never started, which lost nothing; a program's own
faults, which say nothing about the GPUs; and collectives that timed out, which are as often the program's fault: with
them, one tenant's deadlock would make all other jobs save too often."""

LOST_WORK: Final = (
    *FAILURES,
    Cause.NCCL_TIMEOUT,
    Cause.LAUNCH_FAILED,
    Cause.USER_ERROR,
    Cause.GPU_OOM,
    Cause.HOST_OOM,
    Cause.HANG,
    Cause.DIVERGED,
    Cause.CORRUPTION,
    Cause.CHECKPOINT_CORRUPT,
    Cause.SAVE_FAILED,
)
"""The causes that end an attempt without notice, by any fault: the training since the last checkpoint is lost."""


@dataclass(frozen=True, slots=True)
class Record:
    """The number of failed attempts, and the GPU-hours of all attempts that ran."""

    num_failures: int = 0
    gpu_hours: float = 0.0


_NOTHING: Final = Record()


def failures_per_gpu_hour(record: Record, expected: CheckpointIntervalPolicy) -> float:
    """Return the mean rate after ``record``, with the policy's figures as a gamma distributed prior.

    Independent failures are Poisson distributed, and the gamma distribution is conjugate to that: the expectation
    counts as ``prior_failures`` in the GPU-hours in which they were expected. The rate is above 0.
    """
    prior_gpu_hours = expected.prior_failures * expected.prior_gpu_hours_per_failure
    return (expected.prior_failures + record.num_failures) / (prior_gpu_hours + record.gpu_hours)


def own_failures_per_gpu_hour(own: Record) -> float:
    """Return (k - 1) / T after the k-th failure in T hours.

    This is unbiased, since the rate is computed at a failure. One failure gives 0.0. (The waiting time to the k-th
    event of a Poisson process is gamma distributed, and the mean of its inverse is λ / (k - 1).)
    """
    return max(own.num_failures - 1, 0) / own.gpu_hours if own.gpu_hours > 0 else 0.0


def rule_for_program(
    record: Record, expected: CheckpointIntervalPolicy, num_gpus: int, own: Record = _NOTHING
) -> dict[str, float | int | None]:
    """Return the rule for ``muster.train.checkpoint.interval``, as ``MUSTER_CHECKPOINT_INTERVAL`` carries it.

    Without GPUs the rule counts ranks. ``own``: the job's own record by ``LOST_WORK``. A job that fails more often than
    the fleet saves more often.
    """
    return {
        "failures_per_gpu_hour": max(failures_per_gpu_hour(record, expected), own_failures_per_gpu_hour(own)),
        "num_gpus": num_gpus or None,
        "min_s": expected.min_s,
        "max_s": expected.max_s,
    }
