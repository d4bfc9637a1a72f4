"""Effects of tried changes as documents."""

from api.views import time_of
from control.system.effects.types import Effect, JobEffect, Onward
from muster.documents import effects as documents


def effect_view(effect: Effect) -> documents.Effect:
    return {
        "at": time_of(effect.at),
        "jobs": [_job_view(each, effect) for each in effect.jobs],
        "tiers": [
            {"tier": each.tier, "before": each.before, "after": each.after, "idle": each.idle} for each in effect.tiers
        ],
        "changes": list(effect.changes),
    }


def _job_view(found: JobEffect, effect: Effect) -> documents.JobEffect:
    deadline_s = None if found.deadline_at is None else max((found.deadline_at - effect.at).total_seconds(), 0.0)
    return {
        "effect": found.kind.value,
        "job_id": found.job.job_id,
        "name": found.job.name,
        "tenant_id": found.job.tenant_id,
        "tenant": found.job.tenant,
        "tier": found.job.tier,
        "num_gpus": found.num_gpus,
        "why": None if found.why is None else found.why.value,
        "requested_at": time_of(found.requested_at),
        "deadline_at": time_of(found.deadline_at),
        "deadline_s": deadline_s,
        "saved_at": time_of(found.saved_at),
        "lost_gpu_s": round(found.lost_gpu_s, 1),
        "onward": None if found.onward is None else _onward_view(found.onward),
    }


def _onward_view(onward: Onward) -> documents.Onward:
    return {
        "outcome": onward.outcome.value,
        "hosts": list(onward.hosts),
        "num_gpus": onward.num_gpus,
        "starts_at": time_of(onward.starts_at),
        "why": onward.why,
    }
