"""The indicators M1 to M15, in order: the only place that says what each means. The reference page is made of it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ledger.figures.definitions import Figure, Kind, Source
from ledger.figures.networks import OF_NETWORKS
from ledger.figures.training import OF_TRAINING

_JOB_ENDS: Final = {
    "succeeded": "jobs that succeeded",
    "own": "jobs that failed by their own fault, by the cause of their last attempt",
    "infrastructure": "jobs that failed by a fault of the infrastructure, or after the fleet asked them to leave",
    "limit": "jobs whose time or budget was over",
    "unstarted": "jobs that failed before any attempt ended",
    "cancelled": "jobs that a person cancelled",
}
_ATTEMPT_BEGINS: Final = {
    "first": "first attempts of jobs",
    "after_infrastructure": "attempts after a fault of the infrastructure",
    "after_own": "attempts after a fault of the job's own",
    "after_move": "attempts after the fleet asked the one before to leave: reclaim, maintenance, evacuation, new size",
}
_WASTE: Final = {
    "productive": "steps that were trained for the first time, and running time of programs that report none",
    "overhead": "starting, saving, restoring, cleaning",
    "idle": "assigned, and nothing of the rest",
    "slowed": "the part of steps beyond the usual one while a rank was found slow",
    "reclaim_lost": "steps trained again after a reclaim",
    "lost_infrastructure": "steps lost or trained again after a fault of the infrastructure",
    "lost_own": "steps lost or trained again for any other reason",
}

_DEFINED: Final = (
    Figure(
        name="job_success",
        indicator="M1",
        unit="",
        better="higher",
        meaning="Jobs that succeeded by jobs that ended, in the hour of their end. Read it over a week: in a short "
        "time, one passing fault weighs too much.",
        counted_from="jobs, with the cause of their last attempt",
        excluded="Cancelled jobs are counted apart. Faults of infrastructure and job are parts of their own.",
        parts=_JOB_ENDS,
        top=("succeeded",),
        bottom=("succeeded", "own", "infrastructure", "limit", "unstarted"),
        target="at least 99 % in a week",
        bound=0.99,
    ),
    Figure(
        name="job_success_own",
        indicator="M1",
        unit="",
        better="higher",
        meaning="`job_success` as far as tenants decide it.",
        counted_from="the facts of `job_success`",
        excluded="Jobs that failed by the infrastructure, and cancelled jobs.",
        parts=_JOB_ENDS,
        top=("succeeded",),
        bottom=("succeeded", "own", "limit", "unstarted"),
        facts_of="job_success",
    ),
    Figure(
        name="job_loss_to_infrastructure",
        indicator="M1",
        unit="",
        better="lower",
        meaning="Jobs that failed by the infrastructure, by jobs that ended.",
        counted_from="the facts of `job_success`",
        excluded="Cancelled jobs.",
        parts=_JOB_ENDS,
        top=("infrastructure",),
        bottom=("succeeded", "own", "infrastructure", "limit", "unstarted"),
        facts_of="job_success",
    ),
    Figure(
        name="time_to_complete",
        indicator="M2",
        unit="s",
        better="lower",
        kind=Kind.MEAN,
        meaning="From the placement of a job's first attempt to its end, of jobs that succeeded, in the hour of their "
        "end. Read it by class.",
        counted_from="jobs and attempts",
        excluded="Jobs that did not succeed. Jobs with an attempt that was reclaimed are a part of their own: they are "
        "the outliers.",
        parts={
            "undisturbed": "jobs without a reclaimed attempt",
            "reclaimed": "jobs with at least one reclaimed attempt",
        },
        top=("undisturbed", "reclaimed"),
        bottom=("undisturbed", "reclaimed"),
        spread=("undisturbed", "reclaimed"),
    ),
    Figure(
        name="gpu_utilisation",
        indicator="M4",
        unit="%",
        better="higher",
        source=Source.GPUS,
        kind=Kind.MEAN,
        meaning="The mean of NVML's utilisation over samples of GPUs that were assigned to an attempt. Percentiles are "
        "of means by GPU, attempt and hour: sustained use, without spikes. An hour is there one hour after its end.",
        counted_from="telemetry, the metric `utilisation_percent`",
        excluded="GPUs that were free are a part of their own. Samples without the metric.",
        parts={
            "assigned": "samples of GPUs that were assigned",
            "sustained": "means by GPU, attempt and hour",
            "free": "samples of GPUs that were not assigned",
        },
        top=("assigned",),
        bottom=("assigned",),
        spread=("sustained",),
        target="above 80 %; above 90 % unless the loader is the bottleneck",
        bound=80,
    ),
    *OF_TRAINING,
    *OF_NETWORKS,
    Figure(
        name="preemption",
        indicator="M10",
        unit="",
        better="lower",
        meaning="Attempts that ended by a reclaim, by attempts that ended, in the hour of their end. Read it by tier: "
        "a tier that may be reclaimed has more.",
        counted_from="attempts",
        excluded="Attempts that left for maintenance, an evacuation or a new size count as not reclaimed.",
        parts={"reclaimed": "attempts that ended by a reclaim", "other": "attempts that ended otherwise"},
        top=("reclaimed",),
        bottom=("reclaimed", "other"),
    ),
    Figure(
        name="cost_per_epoch",
        indicator="M13",
        unit="money",
        better="lower",
        kind=Kind.RATE,
        meaning="Money per epoch of a training, in the currency of the rate cards: what jobs that ended in the hour "
        "cost from their beginning on, by the epochs that their first ranks reported. Percentiles are of jobs.",
        counted_from="the ledger, rate cards, and epochs as programs report them",
        excluded="Credits for time lost to faults of the infrastructure are taken off. Jobs that report no epochs or "
        "less than a thousandth of one, and jobs with time that has no price.",
        parts={"money": "what these jobs cost, after credits", "epochs": "epochs that they trained"},
        top=("money",),
        bottom=("epochs",),
        spread=("money",),
    ),
    Figure(
        name="waste",
        indicator="M14",
        unit="",
        better="lower",
        source=Source.LEDGER,
        kind=Kind.RATE,
        meaning="Assigned GPU time that trained nothing new, by assigned GPU time. The parts are in GPU-hours. Hours "
        "are there as far as the ledger has them.",
        counted_from="accounts of the ledger",
        excluded="GPUs that were not assigned. What faults of the infrastructure cost, and what reclaims cost, are "
        "parts of their own.",
        parts=_WASTE,
        top=tuple(part for part in _WASTE if part != "productive"),
        bottom=tuple(_WASTE),
        target="low",
    ),
    Figure(
        name="requeue_rate",
        indicator="M15",
        unit="",
        better="lower",
        meaning="Attempts that repeat an earlier one of their job, by attempts, in the hour of their placement. A high "
        "one hides a fault that repeats itself.",
        counted_from="attempts, with the cause of the one before",
        excluded="Faults of the infrastructure, of the job, and moves by the fleet are parts of their own.",
        parts=_ATTEMPT_BEGINS,
        top=("after_infrastructure", "after_own", "after_move"),
        bottom=tuple(_ATTEMPT_BEGINS),
        target="low",
    ),
)


def _place(figure: Figure) -> int:
    return int(figure.indicator[1:])


INDICATORS: Final[Mapping[str, Figure]] = MappingProxyType({each.name: each for each in sorted(_DEFINED, key=_place)})
"""Name → figure, in the order of the indicators."""
