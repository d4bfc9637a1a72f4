"""Classes of jobs, their objectives, and what follows when an error budget burns or is spent."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from muster.domain.policy.quantities import Fraction, Seconds
from muster.domain.strict import Name, StrictModel, Text

BUCKET_S: Final = 300
"""Events are counted by so many seconds: no window is finer."""
Share = Annotated[float, Field(gt=0, lt=1, strict=False)]
Indicator = Literal["success", "start_latency", "step_latency", "checkpoint_success", "resume_success"]
Severity = Literal["page", "ticket"]
SpentAct = Literal["drain", "maintenance", "policy"]


class JobClass(StrictModel):
    """A class of jobs that may expect the same."""

    description: Text = Field("", description="For which jobs the class is.")
    forbids_when_spent: tuple[SpentAct, ...] = Field(
        default=(),
        strict=False,
        description="What is refused while an error budget of the class is spent: `drain` and `maintenance` of hosts "
        "on which its jobs run, and the activation of a `policy`. A person may do so despite it, with a reason.",
    )


class Objective(StrictModel):
    """The target of a class for one indicator. Its error budget is the share of events that may be bad."""

    job_class: Name = Field(description="The class whose jobs it is about.")
    indicator: Indicator = Field(description="Which events count as good and as bad.")
    target: Share = Field(description="The share of good events; the rest is the error budget.")
    window_days: Literal[7, 28] = Field(
        28, description="The days over which the budget counts: whole weeks, so that each has the same weekdays."
    )
    within_s: Seconds | None = Field(
        None, description="For `start_latency`: how long after its submission a job may start."
    )

    @model_validator(mode="after")
    def _has_a_time_for_starts(self) -> Self:
        """`within_s` is given for `start_latency`, and for nothing else."""
        if (self.indicator == "start_latency") != (self.within_s is not None):
            raise ValueError("`within_s` belongs to the indicator start_latency, which needs it")
        return self


class BurnRate(StrictModel):
    """A pair of windows. A budget burns from the moment when both have this rate until the short one is below it."""

    factor: Annotated[float, Field(gt=0, le=1000, strict=False)] = Field(
        description="The rate: 1 spends in its window exactly what the budget has for it."
    )
    long_s: Annotated[Seconds, Field(le=2_419_200)] = Field(
        description="The long window, which shows that enough of the budget is lost."
    )
    short_s: Seconds = Field(description="The short window, which shows that it is still being lost.")
    severity: Severity = Field(description="`page`: a person is needed now; `ticket`: this week.")

    @model_validator(mode="after")
    def _windows_are_whole_buckets(self) -> Self:
        """`short_s` < `long_s`, both multiples of 300 s, by which events are counted."""
        if self.long_s % BUCKET_S or self.short_s % BUCKET_S:
            raise ValueError(f"long_s and short_s must be multiples of {BUCKET_S}, by which events are counted")
        if self.short_s >= self.long_s:
            raise ValueError("short_s must be shorter than long_s")
        return self


def _default_classes() -> dict[str, JobClass]:
    return {
        "production": JobClass(
            description="trainings whose end others wait for", forbids_when_spent=("drain", "maintenance", "policy")
        ),
        "standard": JobClass(description="all other jobs"),
        "experiment": JobClass(description="trials that may fail and are repeated"),
    }


def _default_targets() -> dict[str, Objective]:
    return {
        "production-success": Objective(job_class="production", indicator="success", target=0.99, window_days=7),
        "production-start": Objective(
            job_class="production", indicator="start_latency", target=0.95, within_s=900.0, window_days=28
        ),
        "production-steps": Objective(job_class="production", indicator="step_latency", target=0.95),
        "production-checkpoints": Objective(job_class="production", indicator="checkpoint_success", target=0.999),
        "production-resumes": Objective(job_class="production", indicator="resume_success", target=0.99),
        "standard-success": Objective(job_class="standard", indicator="success", target=0.97),
        "standard-checkpoints": Objective(job_class="standard", indicator="checkpoint_success", target=0.99),
        "standard-resumes": Objective(job_class="standard", indicator="resume_success", target=0.98),
        "experiment-success": Objective(job_class="experiment", indicator="success", target=0.90),
    }


def standard_burn_rates() -> dict[str, BurnRate]:
    """Return the pairs of the Site Reliability Workbook, chapter 5."""
    return {
        "fast": BurnRate(factor=14.4, long_s=3_600.0, short_s=300.0, severity="page"),
        "slow": BurnRate(factor=6.0, long_s=21_600.0, short_s=1_800.0, severity="page"),
        "lasting": BurnRate(factor=1.0, long_s=259_200.0, short_s=21_600.0, severity="ticket"),
    }


class ObjectivePolicy(StrictModel):
    """Classes of jobs with their objectives, and when the loss of an error budget needs a person."""

    default_class: Name = Field(
        "standard", description="The class of a job that names none, or one that no longer exists."
    )
    min_bad_events: Annotated[int, Field(ge=1, le=1_000)] = Field(
        2,
        description="A budget does not begin to burn before the long window has so many bad events: one failure among "
        "three jobs is no rate.",
    )
    forbids: bool = Field(
        False,
        description="Whether `forbids_when_spent` refuses. Where it does not, the change takes place, and its audit "
        "entry and an event name the spent budget.",
    )
    classes: dict[Name, JobClass] = Field(
        default_factory=_default_classes, min_length=1, max_length=32, description="Name of a class → what holds in it."
    )
    targets: dict[Name, Objective] = Field(
        default_factory=_default_targets, max_length=256, description="Name of an objective → its target."
    )
    burn_rates: dict[Name, BurnRate] = Field(
        default_factory=standard_burn_rates,
        min_length=1,
        max_length=8,
        description="Name of a pair of windows → its rate (Site Reliability Workbook, chapter 5).",
    )

    @model_validator(mode="after")
    def _classes_exist(self) -> Self:
        """`default_class`, and `job_class` of each objective, are among `classes`."""
        known = ", ".join(sorted(self.classes))
        if self.default_class not in self.classes:
            raise ValueError(f"default_class {self.default_class} is none of the classes: {known}")
        for name, objective in self.targets.items():
            if objective.job_class not in self.classes:
                raise ValueError(
                    f"job_class {objective.job_class} of the target {name} is none of the classes: {known}"
                )
        return self

    def class_of(self, named: str | None) -> str:
        """Return the class of a job that names this one, or none."""
        return named if named in self.classes else self.default_class


class FindingPolicy(StrictModel):
    """When the pace of a training needs a diagnosis. The gain of a repair is computed to these values."""

    mfu_min: Fraction = Field(0.35, description="A smaller share of the GPU's peak (MFU) is a finding.")
    communication_high: Fraction = Field(
        0.10, description="A larger share of a step in collectives is a finding; the gain is computed to this value."
    )
    communication_fault: Fraction = Field(0.20, description="A larger one is likely a fault of network or layout.")
    busy_min: Fraction = Field(
        0.90, description="A smaller share of a step in which a rank does not wait for data is a finding."
    )
    throughput_drop: Fraction = Field(
        0.10,
        description="A finding if the median of the newest 24 h is lower than that of the 24 h before by so much.",
    )
    min_reports: Annotated[int, Field(ge=2, le=1000)] = Field(
        10, description="How many reports of its pace each of these medians needs."
    )
