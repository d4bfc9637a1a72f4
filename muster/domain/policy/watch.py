"""The rules by which running jobs are watched: when a job that makes no progress counts as hung, and what follows."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from muster.domain.policy.gpu_detectors import Mode
from muster.domain.policy.quantities import Days, Fraction, Number, PositivePoints, Seconds
from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.strict import StrictModel

HangRule = Literal["restart", "hold", "notify"]
"""The reaction to a hang: end the attempt and try again, end it and hold the job, or report it alone."""


class KnownLimits(StrictModel):
    """The shortest time without progress after which a phase is overdue.

    Factor and margin make it longer where the job's own past shows longer durations.
    """

    start_s: Seconds = Field(900.0, description="Imports, building the model, meeting the other ranks.")
    restore_s: Seconds = Field(
        40.0, description="Reading a checkpoint after the first step. Before it the limit is `first_step_s`."
    )
    first_step_s: Seconds = Field(300.0, description="The first step of an attempt.")
    step_s: Seconds = Field(30.0, description="A step.")
    data_s: Seconds = Field(40.0, description="The wait for the next batch.")
    compile_s: Seconds = Field(120.0, description="In a compiler of torch.")
    eval_s: Seconds = Field(40.0, description="An evaluation.")
    save_s: Seconds = Field(40.0, description="A checkpoint that training waits for.")
    end_s: Seconds = Field(600.0, description="After the last step.")


class UnknownLimits(StrictModel):
    """The limit while the rank's processes compute or read, and in a phase that the program declares.

    In a step processor time does not count, since a rank may wait for another one in a busy loop.
    """

    start_s: Seconds = Field(3600.0, description="Imports, building the model, meeting the other ranks.")
    restore_s: Seconds = Field(3600.0, description="Reading the checkpoint.")
    first_step_s: Seconds = Field(3600.0, description="The first step of an attempt.")
    step_s: Seconds = Field(
        300.0, description="A step: while the rank that the others wait for reads, writes or calls other functions."
    )
    data_s: Seconds = Field(600.0, description="The wait for the next batch.")
    compile_s: Seconds = Field(3600.0, description="In a compiler of torch.")
    eval_s: Seconds = Field(7200.0, description="An evaluation.")
    save_s: Seconds = Field(1800.0, description="A checkpoint that training waits for.")
    end_s: Seconds = Field(1800.0, description="After the last step.")

    @property
    def longest_s(self) -> float:
        """The longest time for which any phase may show no progress."""
        return max(float(limit_s) for _, limit_s in self)


class RerunPolicy(StrictModel):
    """Re-runs of suspect steps on other GPUs, after a re-run on the same GPUs gave the same fault."""

    is_on: bool = Field(
        default=True,
        description="Whether a job whose fault repeats itself continues on other hosts, to decide whose it is.",
    )
    of_a_job: Annotated[int, Field(ge=0, le=100)] = Field(
        3, description="So many such re-runs of one job. They use up none of its restarts."
    )
    free_s: Seconds = Field(
        900.0, description="For so long at most a run on other hosts counts neither for fair shares nor a job's budget."
    )
    free_s_a_day: Seconds = Field(
        3600.0, description="For so long at most all such runs of one tenant together do not count in 24 hours."
    )
    burn_in: Mode = Field(
        "shadow",
        description="The burn-in of a GPU that a re-run names. `on`: ordered; `shadow`: only proposed, on the verdict; "
        "`off`: none. A tenant's program names the GPU.",
    )
    burn_in_again_s: Seconds = Field(86_400.0, description="For so long a GPU gets no second burn-in for this reason.")
    burn_ins_a_day: Annotated[int, Field(ge=0, le=1000)] = Field(
        4, description="So many such burn-ins are ordered for verdicts of one tenant in 24 hours."
    )


class GpuWaitPolicy(StrictModel):
    """When a GPU waits in a collective although it is utilised: all of these hold.

    Such a wait spins on the GPU. Training of transformers keeps tensor cores active for 20 to 60 % of the time.
    """

    utilisation_percent: Annotated[float, Field(ge=50, le=100, strict=False)] = Field(
        95.0, description="Its utilisation is at least this. A kernel that waits never pauses, so NVML shows 100 %."
    )
    power_share: Annotated[float, Field(gt=0, lt=1, strict=False)] = Field(
        0.5,
        description="It draws less than this share of its highest power in the attempt. A wait occupies a few "
        "multiprocessors and no memory, while the slower parts of a program seldom fall so far.",
    )
    tensor_percent: Annotated[float, Field(gt=0, le=50, strict=False)] = Field(
        1.0, description="Its tensor cores are active for less of the time: kernels of NCCL use none."
    )
    tensor_past_percent: PositivePoints = Field(
        5.0,
        description="Earlier in the attempt they were active for at least this. Work in fp32 or fp64 that never uses "
        "them is not judged by them.",
    )

    @model_validator(mode="after")
    def _past_is_more(self) -> Self:
        """`tensor_percent` < `tensor_past_percent`."""
        if self.tensor_percent >= self.tensor_past_percent:
            raise ValueError("tensor_percent must be less than tensor_past_percent")
        return self


class IdlePolicy(StrictModel):
    """What follows if all GPUs of a running attempt are known to do nothing for long."""

    mode: Mode = Field(
        "shadow",
        description="`on`: the tenant gets a notice, and after it the GPUs are taken back: the attempt is stopped, its "
        "job HELD. `shadow`: the notice says it without a deadline, and nothing is stopped. `off`: none.",
    )
    after_s: Annotated[float, Field(ge=60, le=604_800, strict=False)] = Field(
        3600.0,
        description="For so long every GPU of the attempt must be known to have done nothing, and no step may be "
        "reported. A gap of a GPU's samples counts as work.",
    )
    notice_s: Annotated[float, Field(ge=60, le=604_800, strict=False)] = Field(
        1800.0, description="The time between the notice and the stop. Work in it takes the notice back."
    )
    shrinks: bool = Field(
        default=True,
        description="Whether an elastic job that has more than its fewest hosts saves and continues on those, instead "
        "of being stopped and HELD. It keeps that size until its tenant resizes it.",
    )


class WatchPolicy(StrictModel):
    """The watch over the progress of running programs, with the reaction to a hang."""

    is_on: bool = Field(default=True, description="Whether progress is watched at all.")
    factor: Annotated[float, Field(ge=1.5, le=100, strict=False)] = Field(
        4.0, description="A phase is overdue after so many times the median of its earlier durations."
    )
    margin: Annotated[float, Field(ge=1, le=100, strict=False)] = Field(
        1.5, description="It is not overdue before so many times the longest of them."
    )
    num_known: Number = Field(3, description="So many durations make a phase's past known.")
    busy_share: Fraction = Field(0.05, description="A rank computes if its processes use so much of one processor.")
    reads_lines: bool = Field(
        default=True, description="Whether hosts read the output of jobs for lines about faults, and send those."
    )
    quiet_s: Seconds = Field(
        1800.0,
        description="The limit for programs without `muster.train`: so long without output and processor time. "
        "Processor time does not count while their GPUs wait in a collective (`gpu_wait`).",
    )
    busy_quiet_s: Seconds = Field(
        21_600.0,
        description="The limit for programs without `muster.train` that use the processor and do nothing else. Output, "
        "64 KiB read or written a second, a process that begins or ends, and work on a GPU restart its time. It is "
        "never shorter than `quiet_s`.",
    )
    gpu_wait: GpuWaitPolicy = Field(default_factory=GpuWaitPolicy)
    known: KnownLimits = Field(default_factory=KnownLimits)
    unknown: UnknownLimits = Field(default_factory=UnknownLimits)
    on_hang: HangRule = Field("restart", description="The reaction for jobs that do not set their own `on_hang`.")
    hang_restarts: Annotated[int, Field(ge=0, le=100)] = Field(
        2, description="After so many restarts because of a hang the next hang holds the job instead."
    )
    stragglers: StragglerPolicy = Field(default_factory=StragglerPolicy)
    false_alarms: Annotated[int, Field(ge=0, le=1000)] = Field(
        2,
        description="After so many dismissed verdicts of one rule and cause on one job, such as `hang.step` with "
        "`storage`, the rule only notifies of that job and cause. Stopped and dead ranks and measured faults are "
        "never muted. 0: dismissals change nothing.",
    )
    false_alarms_days: Days = Field(30, description="For so long a dismissal counts as such a false alarm.")
    reruns: RerunPolicy = Field(default_factory=RerunPolicy)
    idle: IdlePolicy = Field(
        default_factory=IdlePolicy, description="What follows if the GPUs of a running attempt do nothing for long."
    )

    @model_validator(mode="after")
    def _known_is_shorter(self) -> Self:
        """Each limit of `known` ≤ its limit in `unknown`."""
        for name, longer_s in self.unknown:
            if getattr(self.known, name) > longer_s:
                raise ValueError(f"known.{name} must not exceed unknown.{name}")
        return self
