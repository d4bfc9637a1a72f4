"""Plans and wait reasons as pages show them: no more than the API shows the same reader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from api.job_views import job_plan_view
from console.session import Viewer
from console.words import plural, span
from control.jobs.job_plans import JobPlan
from control.placement.hold_occupants import Occupant
from muster.documents.job_plans import PlannedHost, PlannedVictim
from muster.domain.gpu.levels import FLEET_LEVEL
from muster.domain.ids import GpuUuid
from muster.domain.job.alignment_texts import alignment_words
from muster.domain.job.plan_texts import OUTCOMES, Tense, reason_text
from muster.domain.job.wait_reasons import SOLVER_REASONS, WaitReason
from muster.domain.states import PlanOutcome

_FORM_FIELDS: Final[Mapping[str, str]] = {
    "node_labels.without": "without what it asks of the label {}",
    "tier": "in the tier {}",
    "quota.ceiling_gpus": "with a quota of {} GPUs in its tier, which an operator sets",
    "quota.borrowable_gpus": "with a right to borrow {} GPUs in its tier, which an operator gives",
    "quota_above.ceiling_gpus": "with a quota of {} GPUs of its department in its tier, which an operator sets",
    "quota_above.borrowable_gpus": "with a right of its department to borrow {} GPUs in its tier",
    "fleet.nodes": "with so many more idle hosts of its cohort that it may use: {}",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One reason. ``share``: of the GPUs that filters leave out, which is the bar's length; None: no filter."""

    token: str
    text: str
    num_gpus: int | None
    num_hosts: int | None
    share: float | None
    is_binding: bool


@dataclass(frozen=True, slots=True)
class PlanShown:
    """A plan as shown. ``is_requested``: nothing of it is done. ``until``: when held or reclaimed GPUs are free.

    ``occupants``: for a hold, the jobs that run on its GPUs, each with whether it came after this one; a tenant sees
    its own jobs, without the hosts. ``standing``: how its ranks would be placed, a line each.
    ``environment``: why hosts cannot build its environment.
    """

    outcome: PlanOutcome
    title: str
    is_requested: bool
    why: str | None
    rows: Sequence[Row]
    num_ahead: int
    gpus_ahead: int
    earliest_at: datetime | None
    latest_at: datetime | None
    firm_start_at: datetime | None
    until: datetime | None
    hosts: Sequence[PlannedHost]
    standing: Sequence[str]
    victims: Sequence[PlannedVictim]
    changes: Sequence[str]
    num_place_gpus: int
    occupants: Sequence[tuple[Occupant, bool]]
    environment: str | None


def shown(viewer: Viewer, plan: JobPlan, *, since: datetime | None, occupants: Sequence[Occupant] = ()) -> PlanShown:
    """Return the plan as shown. ``since``: when the job was submitted, to mark jobs that came to its place later."""
    view = job_plan_view(plan, viewer.principal)
    return PlanShown(
        outcome=plan.outcome,
        title=OUTCOMES[plan.tense][plan.outcome],
        is_requested=plan.tense is Tense.CONDITIONAL,
        why=view["why"],
        rows=_rows(plan),
        num_ahead=plan.num_ahead,
        gpus_ahead=plan.gpus_ahead,
        earliest_at=plan.earliest_at,
        latest_at=plan.latest_at,
        firm_start_at=plan.firm_start_at,
        until=None if plan.outcome is PlanOutcome.STARTS else plan.starts_at,
        hosts=view["hosts"],
        standing=list(alignment_words(view["groups"], view["rails"], len(view["hosts"]))),
        victims=view["victims"],
        changes=[change_words(each["field"], each["value"]) for each in view["changes"]],
        num_place_gpus=len(place_of(plan)),
        occupants=[(each, since is not None and each.placed_at > since) for each in occupants],
        environment=plan.environment,
    )


def place_of(plan: JobPlan) -> Sequence[GpuUuid]:
    """Return the GPUs that are held for it; none where there is no hold."""
    return [gpu for host in plan.hosts for gpu in host.gpus] if plan.outcome is PlanOutcome.HOLD else []


def _rows(plan: JobPlan) -> Sequence[Row]:
    if plan.verdict is None:
        return ()
    reasons = plan.verdict.reasons
    out = sum(reason.num_gpus or 0 for reason in reasons if reason.token in SOLVER_REASONS) or 1
    return [
        Row(
            token=reason.token.value,
            text=reason_text(reason.token, plan.tense),
            num_gpus=reason.num_gpus,
            num_hosts=reason.num_hosts,
            share=(reason.num_gpus or 0) / out if reason.token in SOLVER_REASONS else None,
            is_binding=reason.token is plan.verdict.binding,
        )
        for reason in reasons
    ]


def change_words(field: str, value: float | str) -> str:
    if field == "wall_time_s":
        return f"with a wall time of {span(float(value))} or less"
    if field == "shape.nodes":
        return f"on {plural(int(value), 'host')}"
    if field == "topology.required":
        return "anywhere in the fleet" if value == FLEET_LEVEL else f"anywhere in one {value}"
    return _FORM_FIELDS[field].format(value)


def token_words(token: WaitReason | None) -> str:
    """Return the binding reason for a table."""
    return "not tried yet" if token is None else token.value.replace("_", " ")
