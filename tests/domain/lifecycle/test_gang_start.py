"""The server's machine at a gang's start: hosts that can wait start together, or none does."""

from dataclasses import replace

import pytest

from muster.domain.ids import NodeId
from muster.domain.lifecycle import attempt, host
from muster.domain.lifecycle.host import HostLedger, Phase
from muster.domain.lifecycle.model import AttemptLifecycle, Verdict
from muster.domain.states import AttemptState, Cause, HostPartState, StopReason
from tests.domain.lifecycle.lives import (
    ATTEMPT,
    FENCE,
    JOB,
    TIMERS,
    A,
    B,
    after,
    claim,
    cleaned,
    exited,
    ledger_after,
    placed,
    reported_to_claim,
    started,
    tick,
)

UNREADY = Verdict(Cause.PREFLIGHT_FAILED, "the host was not ready: no room")


def waiting_claim(node: NodeId, **requested: object) -> attempt.ClaimRequested:
    return replace(claim(node), can_wait=True, **requested)  # type: ignore[arg-type]  # the test names its fields


def ready(node: NodeId) -> attempt.Ready:
    return attempt.Ready(node, FENCE, "boot1")


CLAIMED = after(placed(), waiting_claim(A), waiting_claim(B))


def reported(life: AttemptLifecycle) -> tuple[bool, bool]:
    return attempt.may_go(life, A), attempt.may_go(life, B)


def test_all_are_reported_once_the_last_one_is_ready() -> None:
    assert reported(after(CLAIMED, ready(A))) == (False, False)
    life, commands = attempt.step(after(CLAIMED, ready(A)), ready(B), 5, TIMERS)
    assert reported(life) == (True, True)
    assert life.go_ms == 5
    assert commands == (attempt.Wake(A), attempt.Wake(B))
    assert attempt.step(life, ready(B), 6, TIMERS) == (life, ())


def test_one_that_is_unclaimed_yet_is_waited_for() -> None:
    life = after(placed(), waiting_claim(A), ready(A))
    assert reported(life) == (False, False)
    assert reported(after(life, waiting_claim(B), ready(B))) == (True, True)


def test_a_host_that_cannot_wait_counts_as_ready_with_its_grant() -> None:
    life = after(placed(), waiting_claim(A), ready(A), claim(B))
    assert reported(life) == (True, False)
    assert after(life, started(A), started(B)).state is AttemptState.RUNNING


def test_a_host_alone_waits_for_none_unless_it_is_checked() -> None:
    assert not after(placed([A]), waiting_claim(A)).hosts[0].awaits_go
    checked = after(placed([A]), waiting_claim(A, is_checked=True))
    assert checked.hosts[0].awaits_go
    assert attempt.may_go(after(checked, ready(A)), A)


def test_one_that_is_not_ready_ends_it_for_all_and_is_the_one_at_fault() -> None:
    life = after(CLAIMED, ready(A), exited(B, UNREADY))
    assert life.ending == UNREADY
    assert attempt.stop_order(life, A, 0) == (Cause.PREFLIGHT_FAILED, 0)
    assert [part.is_at_fault for part in life.hosts] == [False, True]
    life = after(life, exited(A, Verdict(Cause.LAUNCH_FAILED, "refused")), cleaned(A), cleaned(B))
    assert life.state is AttemptState.ENDED
    assert life.ending == UNREADY
    assert reported(life) == (False, False)


def test_one_that_is_not_ready_in_time_is_not_waited_for() -> None:
    life = after(CLAIMED, ready(A))
    heard = tick(a=TIMERS.ready_within_ms, b=TIMERS.ready_within_ms)
    assert after(life, heard, now_ms=TIMERS.ready_within_ms - 1).ending is None
    given_up = after(life, heard, now_ms=TIMERS.ready_within_ms)
    assert given_up.ending is not None
    assert given_up.ending.cause is Cause.PREFLIGHT_FAILED
    assert B in given_up.ending.proof
    assert [part.is_at_fault for part in given_up.hosts] == [False, True]


def test_while_none_could_receive_it_a_host_is_not_late() -> None:
    within, back = TIMERS.ready_within_ms, 10**6
    life = after(CLAIMED, ready(A))
    heard = tick(a=back + within, b=back + within, server_started_ms=back)
    assert after(life, heard, now_ms=back + within - 1).ending is None
    assert after(life, heard, ready(B), now_ms=back + within - 1).go_ms == back + within - 1
    given_up = after(life, heard, now_ms=back + within).ending
    assert given_up is not None
    assert given_up.cause is Cause.PREFLIGHT_FAILED


def test_what_has_its_go_may_take_longer_than_that() -> None:
    life = after(CLAIMED, ready(A), ready(B), tick(a=10**6, b=10**6), now_ms=TIMERS.ready_within_ms)
    assert life.ending is None


def test_none_goes_while_a_host_is_lost_and_all_do_once_it_is_received() -> None:
    life = after(CLAIMED, ready(A))
    lost = after(life, tick(a=TIMERS.lost_ms, b=0), now_ms=TIMERS.lost_ms)
    assert lost.state is AttemptState.LOST
    late = after(lost, ready(B), now_ms=TIMERS.lost_ms)
    assert reported(late) == (False, False)
    heard, _ = attempt.step(late, tick(a=TIMERS.lost_ms, b=TIMERS.lost_ms), TIMERS.lost_ms, TIMERS)
    assert reported(heard) == (True, True)


def test_a_stop_takes_the_go_back() -> None:
    life = after(CLAIMED, ready(A), ready(B), attempt.StopRequested(StopReason.CANCEL, 50))
    assert reported(life) == (False, False)


def test_a_host_that_does_not_know_what_the_job_requests_gets_no_order() -> None:
    life, commands = attempt.step(placed(), waiting_claim(A, lacks=("container",)), 0, TIMERS)
    assert life.state is AttemptState.ENDED
    assert life.ending is not None
    assert life.ending.cause is Cause.PREFLIGHT_FAILED
    assert "container" in life.ending.proof
    assert not any(isinstance(command, attempt.Grant) for command in commands)
    assert life.hosts[0].is_at_fault
    assert {part.state for part in life.hosts} == {HostPartState.CLEAN}


def granted_to_wait() -> HostLedger:
    grant = host.ClaimGranted(ATTEMPT, JOB, 0, 1000, awaits_go=True)
    ledger, commands = host.step(ledger_after(reported_to_claim()), grant, 0)
    assert commands == (host.Prepare(ATTEMPT),)
    return ledger


WAITING = ledger_after(host.HostReady(ATTEMPT), ledger=granted_to_wait())
GONE = ledger_after(host.GoReceived(ATTEMPT), ledger=WAITING)


def test_on_a_host_nothing_starts_before_its_go() -> None:
    assert host.step(granted_to_wait(), host.HostReady(ATTEMPT), 0)[1] == (host.Report(ATTEMPT),)
    assert not host.may_start(WAITING.records[ATTEMPT], 0)
    assert host.step(WAITING, host.Tick(), 10) == (WAITING, ())
    assert host.step(WAITING, host.GoReceived(ATTEMPT), 0) == (GONE, (host.StartProgram(ATTEMPT),))
    beat = host.HeartbeatAnswered(0, 1000, go=(ATTEMPT,))
    assert host.step(WAITING, beat, 0) == (GONE, (host.StartProgram(ATTEMPT),))


@pytest.mark.parametrize("ledger", [granted_to_wait(), GONE])
def test_a_go_counts_for_a_host_that_is_ready_and_once(ledger: HostLedger) -> None:
    assert host.step(ledger, host.GoReceived(ATTEMPT), 0) == (ledger, ())


def test_a_stop_bars_a_later_go() -> None:
    stopped = ledger_after(host.HeartbeatAnswered(0, 1000, stops={ATTEMPT: ("cancel", 0)}), ledger=WAITING)
    assert host.step(stopped, host.GoReceived(ATTEMPT), 0) == (stopped, ())


@pytest.mark.parametrize(
    ("ledger", "command"),
    [
        (granted_to_wait(), host.Prepare(ATTEMPT)),
        (WAITING, host.Report(ATTEMPT)),
        (GONE, host.StartProgram(ATTEMPT)),
    ],
)
def test_a_new_launcher_goes_on_where_the_last_one_was(ledger: HostLedger, command: host.Command) -> None:
    assert host.restarted(ledger, "boot1")[1] == (command,)


def test_what_could_not_be_prepared_ends_without_having_started() -> None:
    ledger, commands = host.step(granted_to_wait(), host.ProgramExited(ATTEMPT), 0)
    assert ledger.records[ATTEMPT].phase is Phase.EXITED
    assert not ledger.records[ATTEMPT].has_started
    assert host.Report(ATTEMPT) in commands


MEETING = after(placed(awaits_pairwise=True), waiting_claim(A), waiting_claim(B))


def test_hosts_that_are_to_meet_first_have_their_go_once_they_have() -> None:
    life = after(MEETING, ready(A), ready(B), tick(a=0, b=0))
    assert reported(life) == (False, False)
    life, commands = attempt.step(life, attempt.PairwiseDone(), 7, TIMERS)
    assert reported(life) == (True, True)
    assert (life.go_ms, commands) == (7, (attempt.Wake(A), attempt.Wake(B)))
    assert attempt.step(life, attempt.PairwiseDone((A,), "too late"), 8, TIMERS) == (life, ())


def test_a_host_that_was_named_as_they_met_releases_all_and_is_at_fault_alone() -> None:
    life = after(MEETING, ready(A), ready(B), attempt.PairwiseDone((B,), "b: failed with a"))
    assert life.ending == Verdict(Cause.PREFLIGHT_FAILED, "b: failed with a")
    assert [part.is_at_fault for part in life.hosts] == [False, True]
    assert attempt.stop_order(life, A, 0) == (Cause.PREFLIGHT_FAILED, 0)
    assert reported(life) == (False, False)


def test_a_meeting_states_nothing_before_all_are_ready_nor_of_an_attempt_that_ends() -> None:
    early = after(MEETING, ready(A))
    assert attempt.step(early, attempt.PairwiseDone(), 1, TIMERS) == (early, ())
    ends = after(MEETING, ready(A), ready(B), exited(A, UNREADY))
    assert attempt.step(ends, attempt.PairwiseDone((B,), "no"), 1, TIMERS) == (ends, ())


def test_a_host_that_was_lost_as_they_met_may_be_named_and_gives_none_a_go() -> None:
    lost = after(MEETING, ready(A), ready(B), tick(a=TIMERS.lost_ms, b=0), now_ms=TIMERS.lost_ms)
    assert lost.state is AttemptState.LOST
    named = after(lost, attempt.PairwiseDone((B,), "b: no contact"), now_ms=TIMERS.lost_ms)
    assert named.ending == Verdict(Cause.PREFLIGHT_FAILED, "b: no contact")
    assert attempt.stop_order(named, A, TIMERS.lost_ms) == (Cause.PREFLIGHT_FAILED, 0)
    well = after(lost, attempt.PairwiseDone(), now_ms=TIMERS.lost_ms)
    assert reported(well) == (False, False)
    assert reported(after(well, tick(a=TIMERS.lost_ms, b=TIMERS.lost_ms), now_ms=TIMERS.lost_ms)) == (True, True)
