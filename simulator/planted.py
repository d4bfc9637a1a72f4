"""Bugs on purpose: each a small patch of the wiring. The suite fails when one of them is no longer found.

``within`` is the number of seeds from 0 on in which each has to show.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from muster.domain.ids import JobId
from muster.domain.lifecycle import attempt, contact, host
from muster.domain.lifecycle.host import HostLedger, Phase
from muster.domain.lifecycle.model import AttemptLife, Timers
from muster.domain.states import AttemptState, HostPartState
from simulator.wiring import TRUE_WIRING, Wiring
from simulator.world import run_seed


@dataclass(frozen=True, slots=True)
class PlantedBug:
    name: str
    what: str
    wiring: Wiring
    within: int


def _start_without_claim(ledger: HostLedger, event: host.Event, now_ms: int) -> host.Outcome:
    """An order is started as soon as it is heard of; the claim goes out beside it."""
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


def _never_fence(ledger: HostLedger, event: host.Event, now_ms: int) -> host.Outcome:
    return (ledger, ()) if isinstance(event, host.Tick) else host.step(ledger, event, now_ms)


def _no_reaper(life: AttemptLife, event: attempt.Event, now_ms: int, timers: Timers) -> attempt.Outcome:
    is_starting = life.state in {AttemptState.PLACED, AttemptState.CLAIMING}
    if isinstance(event, attempt.Tick) and is_starting:
        return life, ()
    return attempt.step(life, event, now_ms, timers)


def _not_idempotent(life: AttemptLife, event: attempt.Event, now_ms: int, timers: Timers) -> attempt.Outcome:
    """A completion that comes again counts again."""
    after, commands = attempt.step(life, event, now_ms, timers)
    is_repeated = isinstance(event, attempt.Exited) and life.state is AttemptState.ENDED and life.ending is not None
    if is_repeated and life.ending is not None:
        return replace(after), (*commands, attempt.Ended(life.ending))
    return after, commands


def _remember_records(ledger: HostLedger, boot_id: str) -> host.Outcome:
    """After a reboot the old records count as this boot's: an old grant is good again."""
    records = {
        key: replace(record, boot_id=boot_id, lease_until_ms=1 << 60, phase=Phase.CLAIMED)
        for key, record in ledger.records.items()
        if record.phase in {Phase.CLAIMED, Phase.STARTED}
    }
    return host.restarted(HostLedger(boot_id, 0, records), boot_id)


def _believe_all_boots(before: contact.Hearing | None, boot_id: str, seq: int, now_ms: int) -> contact.Hearing | None:
    if before is None or before.boot_id == boot_id:
        return contact.hear(before, boot_id, seq, now_ms)
    return contact.Hearing(boot_id, now_ms, seq)


def _end_at_once(life: AttemptLife, event: attempt.Event, now_ms: int, timers: Timers) -> attempt.Outcome:
    """The attempt ends with its first bad exit, while other hosts still run it."""
    after, commands = attempt.step(life, event, now_ms, timers)
    if isinstance(event, attempt.Exited) and after.ending is not None and after.state is AttemptState.STOPPING:
        hosts = tuple(replace(part, is_past_lease=True) for part in after.hosts)
        return replace(after, state=AttemptState.ENDED, hosts=hosts), (attempt.Ended(after.ending),)
    return after, commands


def _forget_grants(life: AttemptLife, event: attempt.Event, now_ms: int, timers: Timers) -> attempt.Outcome:
    """A claim is granted whoever had it before."""
    if isinstance(event, attempt.ClaimAsked):
        hosts = tuple(
            replace(part, state=HostPartState.UNCLAIMED)
            if part.node_id == event.node_id and part.state is HostPartState.CLAIMED
            else part
            for part in life.hosts
        )
        after, commands = attempt.step(replace(life, hosts=hosts, stop=None, ending=None), event, now_ms, timers)
        return replace(after, stop=life.stop, ending=life.ending), commands
    return attempt.step(life, event, now_ms, timers)


def _forget_stops(ledger: HostLedger, boot_id: str) -> host.Outcome:
    """A stop that was written down, but not carried out when the launcher died, is never carried out."""
    ledger, commands = host.restarted(ledger, boot_id)
    return ledger, tuple(command for command in commands if not isinstance(command, host.StopProgram))


def _forget_refused(ledger: HostLedger, event: host.Event, now_ms: int) -> host.Outcome:
    """A refused claim is forgotten without a word, though an earlier one of it may have been granted."""
    if isinstance(event, host.ClaimRefused) and event.attempt_id in ledger.records:
        records = {key: record for key, record in ledger.records.items() if key != event.attempt_id}
        return replace(ledger, records=records), ()
    return host.step(ledger, event, now_ms)


def _go_by_oneself(ledger: HostLedger, event: host.Event, now_ms: int) -> host.Outcome:
    """A host that is ready starts, whatever the others of its gang say."""
    ledger, commands = host.step(ledger, event, now_ms)
    if not isinstance(event, host.HostReady):
        return ledger, commands
    ledger, more = host.step(ledger, host.GoHeard(event.attempt_id), now_ms)
    return ledger, commands + more


def _go_with_the_first(life: AttemptLife, event: attempt.Event, now_ms: int, timers: Timers) -> attempt.Outcome:
    """The first host that is ready sends all of them off."""
    after, commands = attempt.step(life, event, now_ms, timers)
    is_ready = isinstance(event, attempt.Ready) and after is not life
    return (replace(after, go_ms=after.go_ms or now_ms) if is_ready else after), commands


def _wait_for_ready(timers: Timers) -> Timers:
    return replace(timers, ready_within_ms=1 << 60)


def _expire_at_once(timers: Timers) -> Timers:
    return replace(timers, no_expiry_after_start_ms=0)


def _lend_longer(timers: Timers) -> Timers:
    return replace(timers, agent_lease_ms=timers.agent_lease_ms * 2)


def _bug(name: str, what: str, within: int, **patch: Any) -> PlantedBug:
    return PlantedBug(name, what, replace(TRUE_WIRING, **patch), within)


PLANTED_BUGS: Final = (
    _bug(
        "start_without_claim", "a program starts on the message, with no claim handshake", 60,
        host_step=_start_without_claim,
    ),
    _bug(
        "never_self_fences", "a host that is cut off runs on past its lease", 400,
        host_step=_never_fence, supervisors_fence_themselves=False,
    ),
    _bug(
        "lease_too_long", "the host's lease is longer than the server's", 400,
        server_timers=_lend_longer,
    ),
    _bug(
        "no_reaper", "an order is rung once; nothing rings again, lists it or gives it up", 60,
        attempt_step=_no_reaper, lists_unclaimed_unrung=False,
    ),
    _bug(
        "stale_completion", "what an old attempt reports is taken for the new one", 60,
        checks_fence_of_reports=False,
    ),
    _bug(
        "stale_commit", "a checkpoint under an old fence is taken", 60,
        checks_fence_of_commits=False,
    ),
    _bug(
        "admission_at_select", "admission is asked when GPUs are selected, not at commit", 60,
        rechecks_admission=False,
    ),
    _bug(
        "completion_twice", "a completion that comes twice counts twice", 60,
        attempt_step=_not_idempotent,
    ),
    _bug(
        "grant_outlives_boot", "a grant of before the reboot starts a program after it", 60,
        host_restarted=_remember_records,
    ),
    _bug(
        "reaper_without_cas", "the reaper writes what it decided on an old reading", 60,
        compares_and_sets=False,
    ),
    _bug(
        "acts_before_disk", "the launcher acts before its ledger is on disk", 60,
        persists_before_acting=False,
    ),
    _bug(
        "clean_without_look", "a host says clean without having looked", 60,
        looks_before_it_says_clean=False,
    ),
    _bug(
        "old_boots_believed", "a delayed heartbeat of an earlier boot is believed", 400,
        hear=_believe_all_boots, knows_claiming_boot=False,
    ),
    _bug(
        "two_schedulers", "a commit trusts the snapshot of its selection", 60,
        rechecks_snapshot=False,
    ),
    _bug(
        "holds_not_asked", "a commit takes what is held for a job that changes its size", 400,
        rechecks_holds=False,
    ),
    _bug(
        "smaller_than_fewest", "an elastic job is placed with fewer hosts than its fewest", 60,
        keeps_to_sizes=False,
    ),
    _bug(
        "deadline_forgotten", "after its restart the server asks for stops at once", 60,
        forgets_deadlines_at_restart=True,
    ),
    _bug(
        "no_expiry_guard", "leases end right after the control plane's own outage", 60,
        server_timers=_expire_at_once,
    ),
    _bug(
        "ends_too_early", "an attempt ends with its first bad exit", 60,
        attempt_step=_end_at_once,
    ),
    _bug(
        "grants_twice", "a claim is granted whatever the attempt has come to", 1_000,
        attempt_step=_forget_grants,
    ),
    _bug(
        "stop_not_resumed", "a stop is lost with the launcher that had noted it", 400,
        host_restarted=_forget_stops,
    ),
    _bug(
        "refusal_forgotten", "a refused claim leaves no report", 60,
        host_step=_forget_refused,
    ),
    _bug(
        "answers_before_commit", "the 2xx leaves before the job is committed", 400,
        answers_after_commit=False,
    ),
    _bug(
        "goes_by_itself", "a host of a gang starts once it is ready itself", 60,
        host_step=_go_by_oneself,
    ),
    _bug(
        "goes_with_the_first", "a gang is told to start with its first ready host", 60,
        attempt_step=_go_with_the_first,
    ),
    _bug(
        "unready_waited_for", "a host that never gets ready is waited for", 60,
        server_timers=_wait_for_ready,
    ),
    _bug(
        "go_said_once", "the go is in the answer to the last ready host alone", 60,
        repeats_go=False,
    ),
    _bug(
        "keys_not_remembered", "a repeated submit makes a second job", 60,
        remembers_keys=False,
    ),
)  # fmt: skip
BUGS: Final = {bug.name: bug for bug in PLANTED_BUGS}


def first_seed_that_finds(bug: PlantedBug, within: int | None = None) -> int | None:
    """The first seed from 0 on whose history breaks an invariant, or None."""
    for seed in range(bug.within if within is None else within):
        if run_seed(seed, bug.wiring, bug.name).violation is not None:
            return seed
    return None
