"""The rules of checkpoints: when they are made, good, read again, and when a failed save is a fault of the storage."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from muster.domain.policy.quantities import Days, Seconds
from muster.domain.strict import StrictModel


class CheckpointIntervalPolicy(StrictModel):
    """The interval of checkpoints (`checkpoint_every="auto"`), and the expected failure rate of GPUs.

    The interval is Young's and Daly's for the measured stall and the attempt's number of GPUs. The failure rate is the
    fleet's own record, and the expectation here before there is one.
    """

    min_s: Seconds = Field(30.0, description="The shortest interval.")
    max_s: Seconds = Field(3600.0, description="The longest interval.")
    window_days: Days = Field(28, description="How far back the fleet's record goes.")
    prior_gpu_hours_per_failure: Annotated[float, Field(gt=0, le=1e9, strict=False)] = Field(
        50_000.0,
        description="The expected GPU-hours between failures. Llama 3: 419 in 54 days of 16,384 GPUs, one in 50,700; "
        "Meta's RSC-1 and RSC-2: one in 29,500 and 82,100.",
    )
    prior_failures: Annotated[float, Field(gt=0, le=1e6, strict=False)] = Field(
        0.1,
        description="The weight of that expectation, as a number of the fleet's own failures. It is small, so that "
        "the record of a worse or better fleet soon counts more.",
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        """`min_s` ≤ `max_s`."""
        if self.max_s < self.min_s:
            raise ValueError("min_s must not exceed max_s")
        return self


class StoragePolicy(StrictModel):
    """The rule by which failed saves count as a fault of the storage, of one host, or of the job's own rights."""

    min_failures: Annotated[int, Field(ge=1, le=1_000)] = Field(
        2, description="An incident opens after so many failed saves at a place without a successful one between them."
    )
    min_hosts: Annotated[int, Field(ge=2, le=1_000)] = Field(
        2,
        description="A place that hosts share is at fault once saves of so many hosts failed there; with fewer the "
        "hosts are at fault.",
    )
    min_jobs_refused: Annotated[int, Field(ge=1, le=1_000)] = Field(
        2, description="A refusal counts as the job's own fault until so many jobs are refused at one place."
    )
    clears_after_saves: Annotated[int, Field(ge=1, le=1_000)] = Field(
        2,
        description="So many successful saves clear a host's fault at a place: saves of the same job from that host "
        "to any place, of another job at the same place, and, for a shared place that was full or "
        "read-only, of any host.",
    )
    window_s: Seconds = Field(
        86_400.0, description="Failures of a job on a host at a place no longer count once the last one is so long ago."
    )


class ScrubPolicy(StrictModel):
    """The rule by which the running job reads stored checkpoints again in the background."""

    interval_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)] = Field(
        86_400.0, description="A checkpoint is read again so long after it was written or last read; 0: never."
    )
    bytes_per_s: Annotated[float, Field(ge=1_000, le=1e12, strict=False)] = Field(
        50e6,
        description="At most so many bytes of a job's checkpoints are read a second, and none while one is saved.",
    )


class TrainingPolicy(StrictModel):
    """The rules by which checkpoints are good, kept or never used again, and the interval at which they are made."""

    good_after_steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        20, description="Steps after which a VERIFIED checkpoint is GOOD."
    )
    taint_margin_s: Annotated[float, Field(ge=0, le=86_400, strict=False)] = Field(
        60.0,
        description="The effects of a correctness fault may have begun so long before it was seen: checkpoints since "
        "then are TAINTED.",
    )
    fault_detection_s: Seconds = Field(
        600.0, description="How late a fault may be found; the newest checkpoint that is older than that is kept."
    )
    last_save_retry_s: Annotated[float, Field(ge=0, le=86_400, strict=False)] = Field(
        300.0,
        description="For how long a program's last save is tried again when it fails, with pauses of 1 s that double "
        "up to 30 s. Its GPUs wait meanwhile. Then the attempt ends as `save_failed`. 0: it is tried once.",
    )
    checkpoint_interval: CheckpointIntervalPolicy = Field(default_factory=CheckpointIntervalPolicy)
    scrub: ScrubPolicy = Field(default_factory=ScrubPolicy)
    storage: StoragePolicy = Field(default_factory=StoragePolicy)

    @model_validator(mode="after")
    def _one_from_before_a_fault_stays(self) -> Self:
        """`taint_margin_s` < `fault_detection_s`: a fault leaves a checkpoint from before it."""
        if self.fault_detection_s <= self.taint_margin_s:
            raise ValueError("fault_detection_s must exceed taint_margin_s: else a fault leaves no earlier checkpoint")
        return self
