"""The server's machine of one attempt: its edges, what changes nothing, and what simulation once found wrong."""

from dataclasses import replace

import pytest

from muster.domain.ids import Fence
from muster.domain.job.spec import NodeLossRule
from muster.domain.lifecycle import attempt
from muster.domain.lifecycle.model import AttemptLifecycle, Verdict
from muster.domain.states import AttemptState, Cause, HostPartState, StopReason
from tests.domain.lifecycle.lives import (
    FAILED,
    FENCE,
    LONG_UP_MS,
    SUCCEEDED,
    TIMERS,
    A,
    B,
    after,
    claim,
    cleaned,
    exited,
    placed,
    running,
    started,
    tick,
)

S, H = AttemptState, HostPartState
STOP = attempt.StopRequested(StopReason.RECLAIM, 120_000)
LEASE_OVER_MS = TIMERS.server_lease_ms + 1


def test_a_gang_is_claimed_runs_and_succeeds() -> None:
    life = placed()
    states = [life.state]
    for event in (claim(A), claim(B), started(A), started(B), exited(A), exited(B)):
        life = after(life, event)
        states.append(life.state)
    assert states == [S.PLACED, S.CLAIMING, S.CLAIMING, S.CLAIMING, S.RUNNING, S.RUNNING, S.ENDED]
    assert life.ending is not None
    assert life.ending.cause is Cause.SUCCEEDED


@pytest.mark.parametrize(
    ("life", "state"),
    [
        (placed(), S.PLACED),
        (after(placed(), claim(A)), S.CLAIMING),
        (running(), S.RUNNING),
        (after(running(), STOP), S.STOPPING),
    ],
)
def test_every_live_state_may_be_lost_and_comes_back_to_what_it_was(
    life: AttemptLifecycle, state: AttemptState
) -> None:
    lost = after(life, tick(a=0, b=0), now_ms=TIMERS.lost_ms - 1)
    assert lost.state is state
    lost = after(life, tick(), now_ms=TIMERS.lost_ms)
    is_claimed = any(part.state is not H.UNCLAIMED for part in life.hosts)
    assert lost.state is (S.LOST if is_claimed else S.ENDED)
    if is_claimed:
        heard = tick(a=TIMERS.lost_ms, b=TIMERS.lost_ms)
        assert after(replace(lost, placed_ms=TIMERS.lost_ms), heard, now_ms=TIMERS.lost_ms).state is state


def test_a_cascade_gives_way_to_the_word_that_states_why_and_to_nothing_else() -> None:
    heard = Verdict(Cause.USER_ERROR, "rank 2: Connection closed by peer", is_cascade=True)
    life = after(running(), exited(B, heard))
    assert (life.state, life.ending) == (S.STOPPING, heard)
    killed = Verdict(Cause.NODE_LOST, "stopped by the host: user_error", is_cascade=True)
    for later, expected in ((FAILED, FAILED), (killed, heard), (SUCCEEDED, heard)):
        ended = after(life, exited(A, later))
        assert (ended.state, ended.ending) == (S.ENDED, expected)
    root_first = after(running(), exited(A, FAILED), exited(B, heard))
    assert root_first.ending == FAILED
    two_roots = after(running(), exited(A, FAILED), exited(B, Verdict(Cause.GPU_OOM, "later")))
    assert two_roots.ending == FAILED


def test_a_silent_host_is_the_root_of_its_peers_broken_connections() -> None:
    heard = Verdict(Cause.USER_ERROR, "rank 2: Connection reset by peer", is_cascade=True)
    life = after(running(), exited(B, heard), tick(a=0, b=LEASE_OVER_MS), now_ms=LEASE_OVER_MS)
    assert life.ending is not None
    assert (life.state, life.ending.cause) == (S.ENDED, Cause.NODE_LOST)


def test_the_first_bad_exit_stops_the_others_and_names_the_cause() -> None:
    life = after(running(), exited(A, FAILED))
    assert (life.state, life.ending) == (S.STOPPING, FAILED)
    assert attempt.stop_order(life, B, 0) == (Cause.USER_ERROR, 0)
    assert after(life, exited(B)).state is S.ENDED


def test_unclaimed_for_long_is_woken_again_then_given_up() -> None:
    life, commands = attempt.step(placed(), tick(), TIMERS.wake_again_ms, TIMERS)
    assert commands == (attempt.Wake(A), attempt.Wake(B))
    life = after(life, tick(), now_ms=TIMERS.place_again_ms)
    assert life.state is S.ENDED
    assert life.ending is not None
    assert life.ending.cause is Cause.LAUNCH_FAILED


def test_a_silent_host_holds_up_the_end_for_its_whole_lease_under_wait() -> None:
    life = after(running(), tick(b=LEASE_OVER_MS), now_ms=TIMERS.server_lease_ms - 1)
    assert (life.state, life.ending) == (S.LOST, None)
    life = after(life, tick(b=LEASE_OVER_MS), now_ms=LEASE_OVER_MS)
    assert life.ending is not None
    assert life.ending.cause is Cause.NODE_LOST
    assert after(life, exited(B)).state is S.ENDED


def test_a_lost_host_does_not_hold_up_the_end_under_fenced() -> None:
    life = after(running(on_node_loss=NodeLossRule.FENCED), tick(b=TIMERS.lost_ms), now_ms=TIMERS.lost_ms)
    assert life.ending is not None
    assert after(life, exited(B)).state is S.ENDED


@pytest.mark.parametrize("rule", NodeLossRule)
def test_nothing_ends_by_silence_right_after_the_servers_start(rule: NodeLossRule) -> None:
    now_ms = LEASE_OVER_MS * 2
    life = after(running(on_node_loss=rule), tick(server_started_ms=now_ms - 1000), now_ms=now_ms)
    assert (life.state, life.ending) == (S.LOST, None)


def test_a_reboot_ends_the_attempt_and_cleans_its_part() -> None:
    life = after(running(), tick(boot="boot2", a=1), now_ms=1)
    assert [part.state for part in life.hosts] == [H.CLEAN, H.STARTED]
    assert life.ending is not None
    assert life.ending.cause is Cause.NODE_LOST


def test_a_stop_keeps_the_most_urgent_reason_and_the_earliest_deadline() -> None:
    life = after(running(), STOP, attempt.StopRequested(StopReason.CANCEL, 500_000))
    assert life.stop is not None
    assert (life.stop.reason, life.stop.deadline_ms) == (StopReason.CANCEL, 120_000)
    assert attempt.stop_order(life, A, 100_000) == (StopReason.CANCEL, 20_000)


def test_a_stop_before_any_claim_ends_at_once() -> None:
    life = after(placed(), STOP)
    assert life.state is S.ENDED
    assert all(part.state is H.CLEAN for part in life.hosts)


def test_wall_time_requests_to_stop() -> None:
    life = after(running(wall_time_ms=5000), tick(a=5000, b=5000), now_ms=5000)
    assert life.stop is not None
    assert life.stop.reason is StopReason.WALLTIME


def test_a_stop_that_leaves_only_unclaimed_hosts_ends_the_attempt() -> None:
    life = after(placed(), claim(A), started(A), STOP, exited(A))
    assert life.state is S.ENDED


def test_a_cause_that_leaves_only_unclaimed_hosts_ends_the_attempt() -> None:
    life = after(placed(), claim(A), started(A), tick(a=TIMERS.place_again_ms), now_ms=TIMERS.place_again_ms)
    assert life.state is S.STOPPING
    assert after(life, exited(A)).state is S.ENDED


def test_the_last_start_is_counted_while_another_host_is_lost() -> None:
    life = after(placed(wall_time_ms=1000), claim(A), claim(B), started(A))
    life = after(life, tick(b=TIMERS.lost_ms), started(B), now_ms=TIMERS.lost_ms)
    assert (life.state, life.resume_state) == (S.LOST, S.RUNNING)
    life = after(life, tick(a=TIMERS.lost_ms, b=TIMERS.lost_ms), now_ms=TIMERS.lost_ms)
    assert (life.state, life.wall_deadline_ms) == (S.RUNNING, TIMERS.lost_ms + 1000)


def test_a_claim_granted_again_renews_the_servers_lease_too() -> None:
    life = after(placed((A,)), claim(A))
    again, commands = attempt.step(life, claim(A), 500_000, TIMERS)
    assert commands == (attempt.Grant(A),)
    life = after(again, tick(), now_ms=500_000 + TIMERS.server_lease_ms - 1)
    assert life.state is S.LOST


@pytest.mark.parametrize("event", [claim(A, boot="boot2"), claim(A, nonce="other"), claim(B, boot="")])
def test_another_boot_or_nonce_is_refused(event: attempt.ClaimRequested) -> None:
    life = running()
    again, commands = attempt.step(life, event, 0, TIMERS)
    assert again is life
    assert isinstance(commands[0], attempt.Refuse)


ENDED = after(running(), exited(A), exited(B))
CLEAN = after(ENDED, cleaned(A), cleaned(B))


@pytest.mark.parametrize("life", [placed(), after(placed(), claim(A)), running(), after(running(), STOP), ENDED, CLEAN])
@pytest.mark.parametrize(
    "event",
    [
        attempt.Started(A, FENCE, "boot0"),
        attempt.Exited(A, FENCE, "boot0", FAILED),
        attempt.Cleaned(A, FENCE, "boot0"),
        replace(started(A), fence=Fence(FENCE - 1)),
        replace(exited(A, FAILED), fence=Fence(FENCE - 1)),
        replace(cleaned(A), fence=Fence(FENCE + 1)),
        attempt.Listed(A, "boot0", is_listed=False),
    ],
)
def test_other_fences_and_boots_change_nothing(life: AttemptLifecycle, event: attempt.Event) -> None:
    again, commands = attempt.step(life, event, 10, TIMERS)
    assert (again, commands) == (life, ())


@pytest.mark.parametrize(
    "event",
    [started(A), exited(A, FAILED), cleaned(A), STOP, tick(a=0, b=0), claim(A), tick(server_started_ms=LONG_UP_MS)],
)
def test_an_ended_clean_attempt_never_changes(event: attempt.Event) -> None:
    assert attempt.step(CLEAN, event, 10_000_000, TIMERS)[0] == CLEAN
