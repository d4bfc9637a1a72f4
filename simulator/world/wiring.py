"""The wiring of the core and the world. The defaults are true; ``planted`` replaces one part at a time by a bug."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from health.standing import breaker, standing
from health.standing.breaker import BreakerDecision, BreakerState, FleetCounts, Taking, TakingDecision, Way
from health.standing.gpu_case import GpuCase, Move
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.lifecycle import attempt, contact, host, job
from muster.domain.lifecycle.model import AttemptLifecycle, JobLifecycle, Timers
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.health import HealthPolicy
from scheduler.model import Plan, Question
from scheduler.planner import plan


def _as_they_are(timers: Timers) -> Timers:
    return timers


def plan_of(question: Question) -> Plan:
    return plan(question.gpus, question.queue, question.policy, question.workload)


@dataclass(frozen=True, slots=True)
class Wiring:
    attempt_step: Callable[[AttemptLifecycle, attempt.Event, int, Timers], attempt.Outcome] = attempt.step
    job_step: Callable[[JobLifecycle, job.Event, int, Timers], job.Outcome] = job.step
    host_step: Callable[[host.HostLedger, host.Event, int], host.Outcome] = host.step
    host_restarted: Callable[[host.HostLedger, str], host.Outcome] = host.restarted
    accept_heartbeat: Callable[[contact.LastContact | None, str, int, int], contact.LastContact | None] = (
        contact.accept_heartbeat
    )
    is_unclaimed_on: Callable[[AttemptLifecycle, NodeId], bool] = attempt.is_unclaimed_on
    stop_order: Callable[[AttemptLifecycle, NodeId, int], tuple[str, int] | None] = attempt.stop_order
    server_timers: Callable[[Timers], Timers] = _as_they_are
    decide: Callable[[GpuCase, int, HealthPolicy], Move | None] = standing.decide
    admit: Callable[[Iterable[Move], BreakerState, FleetCounts, HealthPolicy, int], BreakerDecision] = breaker.admit
    admit_takings: Callable[[Iterable[Taking], BreakerState, FleetCounts, HealthPolicy, int], TakingDecision] = (
        breaker.admit_takings
    )
    end_ways: Callable[
        [BreakerState, Mapping[Way, Sequence[GpuUuid]], FleetCounts, HealthPolicy, int], BreakerState
    ] = breaker.end_ways
    health_policy: HealthPolicy = DEFAULT_POLICY.health
    clamps_times: bool = True
    forgets_breaker_at_restart: bool = False
    rechecks_ceiling: bool = True
    rechecks_victims: bool = True
    rechecks_caps: bool = True
    rechecks_beneficiary: bool = True
    rechecks_places: bool = True
    rechecks_delivered: bool = True
    plan: Callable[[Question], Plan] = plan_of
    counts_notice_from_commit: bool = True
    leases_by_wall_clock: bool = False
    corrects_closed_windows: bool = True
    lists_unclaimed_unrung: bool = True
    repeats_go: bool = True
    forgets_deadlines_at_restart: bool = False
    rechecks_admission: bool = True
    rechecks_snapshot: bool = True
    rechecks_holds: bool = True
    rechecks_kept: bool = True
    keeps_interrupted: bool = True
    rechecks_staying: bool = True
    keeps_to_sizes: bool = True
    compares_and_sets: bool = True
    checks_fence_of_reports: bool = True
    checks_fence_of_commits: bool = True
    knows_claiming_boot: bool = True
    answers_after_commit: bool = True
    remembers_keys: bool = True
    persists_before_acting: bool = True
    supervisors_fence_themselves: bool = True
    checks_before_clean: bool = True


TRUE_WIRING = Wiring()
