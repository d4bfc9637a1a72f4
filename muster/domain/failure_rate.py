"""How often the fleet's GPUs fail under a job: what was expected of them, corrected by what happened."""

from dataclasses import dataclass
from typing import Final

from muster.domain.policy import CheckpointIntervalPolicy
from muster.domain.states import Cause

FAILURES: Final = (Cause.GPU_FAULT, Cause.NODE_LOST, Cause.EVACUATED)
"""How an attempt ends by the infrastructure's fault in the midst of its work. Notices leave time to save, a drain too;
what never started lost nothing; a program's own fault says nothing of the GPUs, and a collective that timed out is as
often the program's, which would have one tenant's deadlock make all others save too often."""


@dataclass(frozen=True, slots=True)
class Record:
    """So many attempts failed in so many hours that GPUs were held by attempts that ran, each GPU's counted."""

    num_failures: int = 0
    gpu_hours: float = 0.0


def failures_per_gpu_hour(record: Record, expected: CheckpointIntervalPolicy) -> float:
    """The mean of the rate after ``record``, where a gamma distribution of the policy's figures stood before it.

    Failures that come by chance alone are Poisson's, and the gamma distribution is conjugate to that: what was expected
    counts as ``prior_failures`` in the GPU-hours in which they were expected. Above 0.
    """
    prior_gpu_hours = expected.prior_failures * expected.prior_gpu_hours_per_failure
    return (expected.prior_failures + record.num_failures) / (prior_gpu_hours + record.gpu_hours)


def rule_for_program(
    record: Record, expected: CheckpointIntervalPolicy, num_gpus: int
) -> dict[str, float | int | None]:
    """What ``muster.train.interval`` goes by, as ``MUSTER_CHECKPOINT_INTERVAL`` says it; of no GPUs it counts ranks."""
    return {
        "failures_per_gpu_hour": failures_per_gpu_hour(record, expected),
        "num_gpus": num_gpus or None,
        "min_s": expected.min_s,
        "max_s": expected.max_s,
    }
