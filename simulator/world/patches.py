"""The planted bugs that are code: each is a step of the core with one fault. ``planted`` describes them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from health.standing import standing
from health.standing.breaker import BreakerDecision, BreakerState, FleetCounts, Taking, TakingDecision, Way
from health.standing.gpu_case import EVERY_GROUP, GpuCase, Move, MoveReason, move_to
from muster.domain.ids import GpuUuid, JobId
from muster.domain.lifecycle import attempt, contact, host
from muster.domain.lifecycle.host import HostLedger, Phase
from muster.domain.lifecycle.model import AttemptLifecycle, Timers
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import AttemptState, HostPartState, Standing


def start_without_claim(ledger: HostLedger, event: host.Event, now_ms: int) -> host.Outcome:
    """Start an order as soon as it is known; the claim is sent at the same time."""
    ledger, commands = host.step(ledger, event, now_ms)
    if not isinstance(event, host.HeartbeatAnswered):
        return ledger, commands
    for attempt_id, _ in event.unclaimed:
        record = ledger.records.get(attempt_id)
        if record is not None and record.phase is Phase.CLAIMING:
            job_id = JobId(f"of {attempt_id}")
            granted = host.ClaimGranted(attempt_id, job_id, event.sent_ms, event.lease_ms)
            ledger, more = host.step(ledger, granted, now_ms)
            commands += more
    return ledger, commands


def never_fence(ledger: HostLedger, event: host.Event, now_ms: int) -> host.Outcome:
    return (ledger, ()) if isinstance(event, host.Tick) else host.step(ledger, event, now_ms)


def no_reaper(life: AttemptLifecycle, event: attempt.Event, now_ms: int, timers: Timers) -> attempt.Outcome:
    is_starting = life.state in {AttemptState.PLACED, AttemptState.CLAIMING}
    if isinstance(event, attempt.Tick) and is_starting:
        return life, ()
    return attempt.step(life, event, now_ms, timers)


def not_idempotent(life: AttemptLifecycle, event: attempt.Event, now_ms: int, timers: Timers) -> attempt.Outcome:
    """Count a completion again when it comes again."""
    after, commands = attempt.step(life, event, now_ms, timers)
    is_repeated = isinstance(event, attempt.Exited) and life.state is AttemptState.ENDED and life.ending is not None
    if is_repeated and life.ending is not None:
        return replace(after), (*commands, attempt.Ended(life.ending))
    return after, commands


def remember_records(ledger: HostLedger, boot_id: str) -> host.Outcome:
    """Treat old records as this boot's after a reboot, so that an old grant is valid again."""
    records = {
        key: replace(record, boot_id=boot_id, lease_until_ms=1 << 60, phase=Phase.CLAIMED)
        for key, record in ledger.records.items()
        if record.phase in {Phase.CLAIMED, Phase.STARTED}
    }
    return host.restarted(HostLedger(boot_id, 0, records), boot_id)


def believe_all_boots(
    before: contact.LastContact | None, boot_id: str, seq: int, now_ms: int
) -> contact.LastContact | None:
    if before is None or before.boot_id == boot_id:
        return contact.accept_heartbeat(before, boot_id, seq, now_ms)
    return contact.LastContact(boot_id, now_ms, seq)


def end_at_once(life: AttemptLifecycle, event: attempt.Event, now_ms: int, timers: Timers) -> attempt.Outcome:
    """End the attempt with its first bad exit, while other hosts still run it."""
    after, commands = attempt.step(life, event, now_ms, timers)
    if isinstance(event, attempt.Exited) and after.ending is not None and after.state is AttemptState.STOPPING:
        hosts = tuple(replace(part, is_past_lease=True) for part in after.hosts)
        return replace(after, state=AttemptState.ENDED, hosts=hosts), (attempt.Ended(after.ending),)
    return after, commands


def forget_grants(life: AttemptLifecycle, event: attempt.Event, now_ms: int, timers: Timers) -> attempt.Outcome:
    """Grant a claim whichever host had it before."""
    if isinstance(event, attempt.ClaimRequested):
        hosts = tuple(
            replace(part, state=HostPartState.UNCLAIMED)
            if part.node_id == event.node_id and part.state is HostPartState.CLAIMED
            else part
            for part in life.hosts
        )
        after, commands = attempt.step(replace(life, hosts=hosts, stop=None, ending=None), event, now_ms, timers)
        return replace(after, stop=life.stop, ending=life.ending), commands
    return attempt.step(life, event, now_ms, timers)


def forget_stops(ledger: HostLedger, boot_id: str) -> host.Outcome:
    """Drop a stop that was recorded, but not carried out when the launcher died."""
    ledger, commands = host.restarted(ledger, boot_id)
    return ledger, tuple(command for command in commands if not isinstance(command, host.StopProgram))


def forget_refused(ledger: HostLedger, event: host.Event, now_ms: int) -> host.Outcome:
    """Forget a refused claim without a report, though an earlier one of it may have been granted."""
    if isinstance(event, host.ClaimRefused) and event.attempt_id in ledger.records:
        records = {key: record for key, record in ledger.records.items() if key != event.attempt_id}
        return replace(ledger, records=records), ()
    return host.step(ledger, event, now_ms)


def go_by_oneself(ledger: HostLedger, event: host.Event, now_ms: int) -> host.Outcome:
    """Start a host that is ready, whatever the state of the others of its gang."""
    ledger, commands = host.step(ledger, event, now_ms)
    if not isinstance(event, host.HostReady):
        return ledger, commands
    ledger, more = host.step(ledger, host.GoReceived(event.attempt_id), now_ms)
    return ledger, commands + more


def go_with_the_first(life: AttemptLifecycle, event: attempt.Event, now_ms: int, timers: Timers) -> attempt.Outcome:
    """Send the go to all hosts when the first one is ready."""
    after, commands = attempt.step(life, event, now_ms, timers)
    is_ready = isinstance(event, attempt.Ready) and after is not life
    return (replace(after, go_ms=after.go_ms or now_ms) if is_ready else after), commands


def wait_for_ready(timers: Timers) -> Timers:
    return replace(timers, ready_within_ms=1 << 60)


def expire_at_once(timers: Timers) -> Timers:
    return replace(timers, no_expiry_after_start_ms=0)


def lend_longer(timers: Timers) -> Timers:
    return replace(timers, agent_lease_ms=timers.agent_lease_ms * 2)


def admit_all(
    moves: Iterable[Move], state: BreakerState, _: FleetCounts, __: HealthPolicy, ___: int
) -> BreakerDecision:
    return BreakerDecision(state, tuple(moves), (), None)


def admit_all_takings(
    takings: Iterable[Taking], state: BreakerState, _: FleetCounts, __: HealthPolicy, ___: int
) -> TakingDecision:
    return TakingDecision(state, tuple(takings), (), None)


def never_give_back(
    state: BreakerState, _: Mapping[Way, Sequence[GpuUuid]], __: FleetCounts, ___: HealthPolicy, ____: int
) -> BreakerState:
    return state


def decide_by_any_burn_in(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    """Treat the newest passed burn-in as proof, whatever was reported since it began."""
    if gpu.standing is Standing.QUARANTINED and any(result.has_passed for result in gpu.burn_ins):
        return move_to(gpu, Standing.PROBATION, MoveReason.BURN_IN_PASSED, now_ms)
    return standing.decide(gpu, now_ms, policy)


def decide_by_any_coverage(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    """Treat each passed burn-in as a proof of every part of the GPU, whatever it tested."""
    burn_ins = tuple(replace(result, covers=EVERY_GROUP) for result in gpu.burn_ins)
    return standing.decide(replace(gpu, burn_ins=burn_ins), now_ms, policy)


_HEALTH: Final = DEFAULT_POLICY.health
POLICY_THAT_NEVER_FORGETS: Final = _HEALTH.model_copy(
    update={"evidence": _HEALTH.evidence.model_copy(update={"stale_action_s": 1e9})}
)
