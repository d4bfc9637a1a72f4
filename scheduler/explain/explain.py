"""The text and tokens of why a job is pending. Each text begins with the cause; what the job needs follows."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from muster.domain.job.wait_reasons import WAIT_REASON_TEXTS, WaitReason
from muster.domain.policy.document import Policy
from scheduler.explain.clauses import Clause, ClausePair, and_also, moment, verdict_of
from scheduler.explain.exclusions import Funnel
from scheduler.explain.free_room import FreeRoom, largest_place
from scheduler.holds.outcomes import Coming, Obstacle, Refused
from scheduler.model import Hold, Postponed, Reason, Verdict, WaitingJob
from scheduler.quota.tenancy import Limit
from scheduler.solve.request import Request

_BEFORE_ANY_GPU: Final = frozenset(
    {
        WaitReason.UNKNOWN_TIER,
        WaitReason.QUOTA,
        WaitReason.QUOTA_ABOVE,
        WaitReason.BORROWING,
        WaitReason.FIRM_GUARANTEES,
        WaitReason.EXAMINED_LATER,
    }
)
_OBSTACLES: Final[Mapping[Obstacle | None, WaitReason]] = {
    Obstacle.CAP: WaitReason.RECLAIM_CAP,
    Obstacle.MIN_RUN: WaitReason.RECLAIM_MIN_RUN,
    Obstacle.GUARANTEES: WaitReason.GUARANTEES,
    Obstacle.OWN_GUARANTEE: WaitReason.OWN_GUARANTEE,
    Obstacle.TOO_LITTLE: WaitReason.RECLAIM_TOO_LITTLE,
}


EXAMINED_LATER: Final = Verdict(
    WAIT_REASON_TEXTS[WaitReason.EXAMINED_LATER], WaitReason.EXAMINED_LATER, (Reason(WaitReason.EXAMINED_LATER),)
)
"""The verdict of a job that a cycle only tries to start (``scheduler.queue.examination``)."""


def unknown_tier(tier: str) -> Verdict:
    return _alone(f"the policy no longer defines the tier {tier}", Reason(WaitReason.UNKNOWN_TIER))


def over_quota(job: WaitingJob, limit: Limit) -> Verdict:
    """Return the verdict for a job over its quota; its count is the GPUs by which the job exceeds the limit."""
    is_own = limit.tenant_id == job.tenant_id
    why = f"no quota is left for {_gpus(job.fewest_gpus)}: {limit_in_use(limit, job.tier, is_own=is_own)}"
    token = WaitReason.BORROWING if not limit.is_ceiling else WaitReason.QUOTA if is_own else WaitReason.QUOTA_ABOVE
    return _alone(why, Reason(token, job.fewest_gpus - limit.left))


def not_lent(job: WaitingJob, limit: Limit) -> Verdict:
    """Return the verdict for a job that would borrow what is guaranteed to others, which no rule would take back."""
    why = (
        f"needs {_gpus(job.fewest_gpus)}, and {limit.left} are not guaranteed to other tenants: "
        f"jobs of the tier {job.tier} do not borrow those, since no rule would take them back"
    )
    return _alone(why, Reason(WaitReason.FIRM_GUARANTEES, job.fewest_gpus - limit.left))


def why_withdrawn(limit: Limit) -> str:
    """Return why nothing is reclaimed any more for a job that ``limit`` keeps pending."""
    return "other tenants' guarantees leave too little" if limit.is_firm else "its tenant has reached its quota"


def quota_kept(over: Verdict, from_ms: int) -> Verdict:
    """Return the verdict for a job over its quota that enough work overtook."""
    told = "as much later work as the policy allows has overtaken it, so its quota is kept for it from about "
    return and_also(over, f"{told}{_rounded(from_ms, 300_000)} on")


def quota_reserved(job: WaitingJob, limit: Limit, hold: Hold | None) -> Verdict:
    """Return the verdict for a job for which GPUs are free, but ``limit`` is used up by holds of others.

    ``hold``: the hold for the job, which starts after them; None if it has none.
    """
    over = over_quota(job, limit)
    if hold is None:
        return over
    from_then = f"held for it from about {_rounded(hold.until_ms, 30_000)} on"
    num_hosts = len(hold.gpus) // job.gpus_per_node
    placed = and_also(over, ClausePair(f"a place is {from_then}", f"a place would be {from_then}"))
    told = and_also(placed, _firm(hold))
    return replace(told, reasons=(*over.reasons, Reason(WaitReason.HOLD, len(hold.gpus), num_hosts)))


def limit_in_use(limit: Limit, tier: str, *, is_own: bool) -> str:
    """Return the text about a reached limit, for a commit and a plan alike."""
    who = "its tenant holds" if is_own else "the department of its tenant holds, with all its teams,"
    allowed = "quota allows" if limit.is_ceiling else "guarantee and what it may borrow allow"
    told = f"{who} {limit.assigned} of the {limit.most} GPUs that its {allowed} in the tier {tier}"
    return f"{told}, and {limit.kept} are kept for pending jobs" if limit.kept else told


def over_share(verdict: Verdict, over_gpus: float) -> Verdict:
    """Return the verdict with the fair-share reason, which counts the whole GPUs beyond the share.

    The sentence does not state that number, since it changes.
    """
    if verdict.binding in _BEFORE_ANY_GPU:
        return verdict
    told = "its tenant has its fair share of the tier, so jobs of tenants with less go before it"
    reasons = (Reason(WaitReason.FAIR_SHARE, int(over_gpus)), *verdict.reasons)
    return replace(and_also(verdict, told), reasons=reasons)


def _alone(why: str, reason: Reason) -> Verdict:
    return Verdict(why, reason.token, (reason,))


def reclaimed_for_it(
    request: Request, deadline_ms: int, num_gpus: int, through: Funnel, *, stands: bool = False
) -> Verdict:
    """Return the verdict for a beneficiary; the count is the GPUs that victims give.

    ``stands``: the notice was given before; else this plan gives it.
    """
    due = f"due by {moment(deadline_ms)}"
    being = f"GPUs are being reclaimed for it, {due}"
    deed = being if stands else ClausePair(being, f"GPUs would be reclaimed for it, {due}")
    return verdict_of([deed, _needed(request)], through, Reason(WaitReason.RECLAIM_NOTIFIED, num_gpus))


def planned_again(request: Request, through: Funnel) -> Verdict:
    told = "the GPUs that were being reclaimed for it no longer suffice, so it is planned again"
    return verdict_of([told, _needed(request)], through, Reason(WaitReason.TRIED_AGAIN))


def hold_for_it(request: Request, hold: Hold, through: Funnel) -> Verdict:
    """Return the verdict for a job with a backfill hold.

    The time is an estimate if jobs there state no wall time. It is rounded up to half a minute, so that the text stays
    the same from cycle to cycle.
    """
    free = f"enough GPUs become free by {_rounded(hold.until_ms, 30_000)} without reclaim{_work(hold)}"
    own = f"{hold.num_free} of the {len(hold.gpus)} that it"
    place = ClausePair(
        f"{free}, and {own} will start on are idle and held for it{_before(hold)}",
        f"{free}, and {own} would start on are idle and would be held for it{_before(hold)}",
    )
    num_hosts = len(hold.gpus) // request.gpus_per_node
    clauses: list[Clause] = [place, _firm(hold), _needed(request)]
    return verdict_of(clauses, through, Reason(WaitReason.HOLD, len(hold.gpus), num_hosts))


def _firm(hold: Hold) -> Clause:
    """Return whether the start is firm."""
    if hold.latest_ms is None:
        return "that start is expected and not firm: a more urgent job may go before it"
    by = f"by {_rounded(hold.latest_ms, 30_000)} at the latest"
    rest = "its start is firm, and no later job of its tier delays it"
    return ClausePair(f"it starts {by}: {rest}", f"it would start {by}: {rest}")


def start_postponed(verdict: Verdict, postponed: Postponed) -> Verdict:
    """Return the verdict with the reason why its firm start was postponed."""
    return and_also(
        verdict, f"its firm start by {_rounded(postponed.latest_ms, 30_000)} was postponed: {postponed.why}"
    )


def _work(hold: Hold) -> str:
    hosts = "host" if hold.num_in_maintenance == 1 else "hosts"
    return f", once planned work on {hold.num_in_maintenance} {hosts} is over" if hold.num_in_maintenance else ""


def _before(hold: Hold) -> str:
    if not hold.num_before:
        return ""
    jobs = "one job" if hold.num_before == 1 else f"{hold.num_before} jobs"
    return f", after {jobs} before it that will run there until then"


def awaits_replacement(request: Request, hold: Hold, through: Funnel) -> Verdict:
    num_hosts = len(hold.gpus) // request.gpus_per_node
    told = (
        f"{num_hosts} of its {request.nodes} hosts are good and kept for it, and until "
        f"{moment(hold.until_ms)} it waits for others of that {request.required} to replace the lost ones: "
        "then the whole gang is placed again"
    )
    return verdict_of([told, _needed(request)], through, Reason(WaitReason.REPLACEMENT, len(hold.gpus), num_hosts))


def replacement_reclaimed(
    request: Request, num_kept: int, deadline_ms: int, through: Funnel, *, stands: bool = False
) -> Verdict:
    """Return the verdict for a gang with lost hosts that reclaim replaces.

    ``num_kept``: GPUs of its good hosts; ``stands``: as in ``reclaimed_for_it``.
    """
    num_hosts = num_kept // request.gpus_per_node
    kept = f"{num_hosts} of its {request.nodes} hosts are good and kept for it, and others of that {request.required}"
    due = f"reclaimed to replace the lost ones, due by {moment(deadline_ms)}"
    being = f"{kept} are being {due}"
    deed = being if stands else ClausePair(being, f"{kept} would be {due}")
    missing = request.nodes - num_hosts
    reclaimed = Reason(WaitReason.RECLAIM_NOTIFIED, missing * request.gpus_per_node, missing)
    return verdict_of([deed, _needed(request)], through, Reason(WaitReason.REPLACEMENT, num_kept, num_hosts), reclaimed)


def passed_enough(verdict: Verdict) -> Verdict:
    """Return the verdict for a job that goes first in its tier, since enough work overtook it.

    It is unchanged if going first does not help.
    """
    if verdict.binding in _BEFORE_ANY_GPU:
        return verdict
    told = (
        "as much later work as the policy allows has overtaken it, so it goes before all later jobs of its tier that "
        "have not run yet"
    )
    return and_also(verdict, told)


def _in_the_way(until_ms: int) -> str:
    return (
        f"it would fit on GPUs that are held until about {_rounded(until_ms, 300_000)} for a gang before it: with a "
        "wall time that ends before then, it may run there"
    )


def _rounded(at_ms: int, by_ms: int) -> str:
    """Return the time rounded up: a sentence that many jobs quote must not change from cycle to cycle."""
    return moment(-(-at_ms // by_ms) * by_ms)


def no_room(
    room: FreeRoom,
    request: Request,
    outcome: Coming | Refused,
    policy: Policy,
    through: Funnel,
    *,
    hold_until_ms: int | None = None,
    hold: Hold | None = None,
) -> Verdict:
    """Return the verdict for a gang that was tried and did not fit; ``outcome``: the effect of reclaim.

    ``room``: of its family; ``hold_until_ms``: until when GPUs on which it would fit are held for others; ``hold``: the
    GPUs held for it until a reclaim may help.
    """
    clauses = _no_room(room, request, outcome, policy)
    if through.binding is WaitReason.RESIDENCY:
        clauses.insert(0, room.residency)
    if hold is not None:
        idle = f"{hold.num_free} idle GPUs"
        clauses.append(ClausePair(f"{idle} are held for it until then", f"{idle} would be held for it until then"))
    if hold_until_ms is not None:
        clauses.append(_in_the_way(hold_until_ms))
    return verdict_of(clauses, through, *_obstacle(outcome))


def _obstacle(outcome: Coming | Refused) -> Iterator[Reason]:
    if isinstance(outcome, Coming):
        yield Reason(WaitReason.ENDING_SOON)
    elif outcome.obstacle in _OBSTACLES:
        yield Reason(_OBSTACLES[outcome.obstacle], outcome.num_gpus)


def _no_room(room: FreeRoom, request: Request, outcome: Coming | Refused, policy: Policy) -> list[Clause]:
    if room.is_of_no_use:
        return [room.is_of_no_use, _needed(request)]
    free, binding = room.free(request), room.binding(request.at_least())
    cause = room.too_large_for_a_host or binding or free
    others = [clause for clause in (free, binding) if clause != cause]
    clauses: list[Clause] = [cause, _needed(request), *others, _outcome(outcome, request, policy)]
    return [clause for clause in clauses if clause]


def _needed(request: Request) -> str:
    where = "" if request.required is None else f" in one {request.required}"
    nodes = f"{request.fewest_nodes} to {request.nodes}" if request.fewest_nodes < request.nodes else f"{request.nodes}"
    return f"needs {nodes} × {request.gpus_per_node} GPUs of one cohort{where}{_rule(request)}"


def _rule(request: Request) -> str:
    rule = request.rule
    slices = [f"each {one.nodes} hosts in one {one.level}" for one in rule.slices]
    spread = [] if rule.balance is None else [f"spread evenly over each {rule.balance}"]
    labels = [f"on hosts with {name}={'|'.join(sorted(values))}" for name, values in rule.labels.required]
    labels += [f"not on hosts with {name}={'|'.join(sorted(values))}" for name, values in rule.labels.forbidden]
    told = [*slices, *spread, *labels]
    return f", {', '.join(told)}" if told else ""


def _outcome(outcome: Coming | Refused, request: Request, policy: Policy) -> Clause:
    if isinstance(outcome, Coming):
        return f"enough of them become free by {moment(outcome.until_ms)} without reclaim"
    if outcome.obstacle is Obstacle.CAP:
        window_min = policy.reclaim.window_s / 60
        return f"the cap on what a tenant may lose to reclaim in {window_min:g} minutes leaves too little for it"
    if outcome.obstacle is Obstacle.TOO_LITTLE:
        told = largest_place(request.at_least(), outcome.most_nodes, "free", outcome.most_unrounded)
        return f"reclaim cannot help: even with the GPUs of all reclaimable jobs, {told}"
    if outcome.obstacle is Obstacle.CLOSING:
        return "reclaim would help if it ended before hosts close for planned work"
    if outcome.obstacle is Obstacle.OWN_GUARANTEE:
        beyond = "with it its tenant, or the tenant's department, would hold more than is guaranteed in this tier"
        return ClausePair(
            f"{beyond}, so nothing is reclaimed for it", f"{beyond}, so nothing would be reclaimed for it"
        )
    if outcome.obstacle is Obstacle.GUARANTEES:
        return "the GPUs that other tenants borrow are not enough for it, and the rest is within their own guarantees"
    if outcome.obstacle is Obstacle.MIN_RUN and outcome.until_ms is not None:
        until, when = moment(outcome.until_ms), "when enough jobs have had their minimum run time"
        if outcome.is_behind:
            until, when = f"{until} at the earliest", f"{when}, and helps jobs before it first"
        return ClausePair(f"reclaim waits until {until}, {when}", f"reclaim would wait until {until}, {when}")
    return ""


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"
