"""Routes of objectives: error budgets by class, and findings about the speed of one job."""

from typing import Annotated, Any, cast

from fastapi import APIRouter, Request

from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import reading, require_id
from api.views import time_of
from control.jobs import jobs
from control.jobs.findings import findings_of_job
from control.ledger import objective_reads
from control.ledger.objective_reads import ObjectiveView
from ledger.findings import Finding, words_of
from ledger.objectives import Counts
from muster.documents import objectives as documents
from muster.domain.ids import JobId
from muster.domain.policy.objectives import BurnRate
from muster.domain.principals import Permission, Principal
from muster.domain.times import to_time

router = APIRouter(tags=["objectives"])


@router.get("/objectives")
def list_objectives(
    request: Request, principal: Annotated[Principal, requires(Permission.POLICY_READ)]
) -> documents.ObjectiveBudgetPage:
    """Return the objectives of all classes with their error budgets: burning ones first, then the least rest."""
    units = dependencies_of(request).units
    found = reading(units, principal, objective_reads.READ, objective_reads.list_objectives)
    return {"items": [_objective_view(each) for each in found], "next_cursor": None}


@router.get("/jobs/{job_id}/findings")
def job_findings(
    job_id: str, request: Request, principal: Annotated[Principal, requires(Permission.JOB_READ)]
) -> documents.JobFindings:
    """Return what slows a training down, by the reports of its own program, with the gain that a repair would bring."""
    found_id, units = JobId(require_id("job", job_id)), dependencies_of(request).units
    found = reading(units, principal, jobs.READ, lambda unit: findings_of_job(unit, found_id))
    return {"items": [_finding_view(each) for each in found.findings], "why": found.why}


def _objective_view(view: ObjectiveView) -> documents.ObjectiveBudget:
    objective, state = view.objective, view.state
    counts = Counts() if state is None else Counts(state.num_good, state.num_bad)
    return {
        "name": view.name,
        "job_class": objective.job_class,
        "indicator": objective.indicator,
        "target": objective.target,
        "window_days": objective.window_days,
        "within_s": objective.within_s,
        "state": None if state is None else cast("Any", state.state),
        "state_since": None if state is None else time_of(state.state_since),
        "good_share": counts.good_share,
        "num_good": counts.good,
        "num_bad": counts.bad,
        "left_fraction": 1.0 if state is None else state.left_fraction,
        "is_spent": state is not None and state.is_spent,
        "forbids": list(view.job_class.forbids_when_spent),
        "is_enforced": view.is_enforced,
        "burn_rates": [_rate_view(name, rate, view) for name, rate in view.burn_rates.items()],
        "counted_from": None if state is None else time_of(state.counted_from),
        "counted_until": None if state is None else time_of(state.counted_until),
    }


def _rate_view(name: str, rate: BurnRate, view: ObjectiveView) -> documents.BurnRates:
    long_rate, short_rate = (0.0, 0.0) if view.state is None else view.state.rates.get(name, (0.0, 0.0))
    return {
        "name": name,
        "factor": rate.factor,
        "long_s": rate.long_s,
        "short_s": rate.short_s,
        "severity": rate.severity,
        "long_rate": long_rate,
        "short_rate": short_rate,
        "since": None if view.state is None else view.state.burning.get(name),
    }


def _finding_view(found: Finding) -> documents.JobFinding:
    return {
        "kind": found.kind.value,
        "text": words_of(found),
        "advice": found.advice,
        "value": found.value,
        "bar": found.bar,
        "repaired": found.repaired,
        "unit": found.unit,
        "gain": found.gain,
        "since": time_of(to_time(found.since_ms)),
        "until": time_of(to_time(found.until_ms)),
        "num_reports": found.num_reports,
    }
