"""The effect of a tried change as titled lines: the command and the console show the same ones."""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Final

from muster.domain.job.plan_texts import OUTCOMES, Tense
from muster.domain.states import JobEffectKind, PlanOutcome, StopReason


@dataclass(frozen=True, slots=True)
class Part:
    """Lines under one title."""

    title: str
    lines: tuple[str, ...]


_REASONS: Final[Mapping[str, str]] = {
    StopReason.RECLAIM: "its GPUs are reclaimed for a job of a higher tier or of a tenant below its share",
    StopReason.CANCEL: "it is cancelled",
    StopReason.EVACUATION: "a GPU of it goes out of service",
    StopReason.MAINTENANCE: "its node is needed empty",
    StopReason.WALLTIME: "its wall time is over",
    StopReason.BUDGET: "its budget is spent",
    StopReason.IDLE: "its GPUs do nothing",
    StopReason.HOT_SWAP: "a host of it is replaced",
    StopReason.RESIZE: "it changes its size",
}
_WAYS: Final[Mapping[str, str]] = {
    JobEffectKind.LEAVES: "has to leave",
    JobEffectKind.ENDS: "ends permanently",
    JobEffectKind.STARTS: "would start",
    JobEffectKind.WAITS: "would wait",
}

MAX_NAMED: Final = 50
"""Jobs, and changes, that the lines name; the document has all of them."""


def effect_parts(effect: Mapping[str, Any]) -> list[Part]:
    """Return the effect as titled lines, for the command and for a page; of many jobs or changes, the first ones."""
    jobs = [line for job in effect["jobs"][:MAX_NAMED] for line in _job_lines(job)]
    jobs += _rest(effect["jobs"])
    changes = [*effect["changes"][:MAX_NAMED], *_rest(effect["changes"])]
    if not jobs and effect["tiers"]:
        jobs = ["none: no job has to leave, ends, or starts because of it"]
    if not changes and not effect["jobs"]:
        changes = ["none: this is already the case"]
    parts = [
        Part("Jobs", tuple(jobs)),
        Part("GPUs that each tier admits", tuple(map(_tier_line, effect["tiers"]))),
        Part("Changes", tuple(changes)),
    ]
    return [part for part in parts if part.lines]


def _rest(found: Sized) -> list[str]:
    return [f"and {len(found) - MAX_NAMED} more"] if len(found) > MAX_NAMED else []


def _job_lines(job: Mapping[str, Any]) -> Iterator[str]:
    of_job = f"{job['name']} ({job['job_id']}) of {job['tenant']}, {job['tier']}, {_gpus(job['num_gpus'])}"
    yield f"{of_job}: {_WAYS.get(job['effect'], job['effect'])}{_reason(job)}"
    if job["deadline_s"] is not None:
        requested = f"asked to leave at {_second(job['requested_at'])}, " if job["requested_at"] else ""
        yield f"  {requested}deadline in {_span(job['deadline_s'])} ({_second(job['deadline_at'])})"
        yield f"  {_lost(job)}"
    if job["onward"] is not None:
        yield f"  {_onward(job['onward'], has_left=job['effect'] == JobEffectKind.LEAVES)}"


def _reason(job: Mapping[str, Any]) -> str:
    return f": {_REASONS[job['why']]}" if job["why"] in _REASONS and job["effect"] == JobEffectKind.LEAVES else ""


def _lost(job: Mapping[str, Any]) -> str:
    if not job["lost_gpu_s"]:
        return "no work is lost"
    since = (
        f"since its checkpoint of {_second(job['saved_at'])}"
        if job["saved_at"]
        else "since its start: it has no checkpoint"
    )
    hours = job["lost_gpu_s"] / 3600
    return f"work {since}: {hours:.2g} GPU-hours, lost if it saves none before the deadline"


def _onward(onward: Mapping[str, Any], *, has_left: bool) -> str:
    hosts = f" on {', '.join(onward['hosts'])}" if onward["hosts"] else ""
    if onward["outcome"] == PlanOutcome.STARTS:
        return f"{'continues at once' if has_left else 'starts at once'}{hosts}, {_gpus(onward['num_gpus'])}"
    planned = OUTCOMES[Tense.CONDITIONAL][PlanOutcome(onward["outcome"])]
    due = f", free at about {_second(onward['starts_at'])}" if onward["starts_at"] else ""
    why = f": {onward['why']}" if onward["why"] else ""
    return f"{'then ' if has_left else ''}{planned}{hosts}{due}{why}"


def _tier_line(tier: Mapping[str, Any]) -> str:
    change = f"{tier['before']} now, {tier['after']} then" if tier["before"] != tier["after"] else f"{tier['after']}"
    return f"{tier['tier']}: {change}, of them {tier['idle']} without a job"


def _second(moment: str) -> str:
    """Return a time to the second, without the fraction."""
    return f"{moment.partition('.')[0].rstrip('Z')}Z"


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
