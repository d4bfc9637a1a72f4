"""Whatever comes in whatever order: edges hold, ENDED is final, causes and deadlines stay, grants repeat."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import Fence, NodeId
from muster.domain.job.spec import NodeLossRule
from muster.domain.lifecycle import attempt, host
from muster.domain.lifecycle.contact import LastContact, accept_heartbeat
from muster.domain.lifecycle.host import HostLedger
from muster.domain.lifecycle.model import AttemptLifecycle
from muster.domain.states import AttemptState, HostPartState, StopReason
from tests.domain.lifecycle.lives import ATTEMPT, FAILED, FENCE, JOB, SUCCEEDED, TIMERS, A, B, placed
from tests.scaled import examples

nodes = st.sampled_from((A, B))
boots = st.sampled_from(("boot1", "boot1", "boot1", "boot2"))
fences = st.sampled_from((FENCE, FENCE, FENCE, Fence(FENCE - 1)))
times = st.integers(0, 3 * TIMERS.server_lease_ms)
hearings = st.builds(LastContact, boots, times)
ticks = st.builds(attempt.Tick, st.dictionaries(nodes, hearings), st.integers(-TIMERS.server_lease_ms, 10_000))
attempt_events: st.SearchStrategy[attempt.Event] = st.one_of(
    st.builds(attempt.ClaimRequested, nodes, fences, boots, st.just("n"), st.booleans()),
    st.builds(attempt.Ready, nodes, fences, boots),
    st.builds(attempt.Started, nodes, fences, boots),
    st.builds(attempt.Exited, nodes, fences, boots, st.sampled_from((SUCCEEDED, FAILED))),
    st.builds(attempt.Cleaned, nodes, fences, boots),
    st.builds(attempt.Listed, nodes, boots, is_listed=st.booleans()),
    st.builds(attempt.StopRequested, st.sampled_from(StopReason), times),
    ticks,
)
histories = st.lists(st.tuples(attempt_events, st.integers(0, TIMERS.server_lease_ms)), max_size=25)
rules = st.sampled_from(NodeLossRule)


def lives(history: Sequence[tuple[attempt.Event, int]], rule: NodeLossRule) -> list[tuple[AttemptLifecycle, int]]:
    """Every life along the way, with its time. ``step`` itself asserts that only listed edges happen."""
    life, now_ms = placed(on_node_loss=rule, wall_time_ms=100_000), 0
    passed = [(life, now_ms)]
    for event, pause_ms in history:
        now_ms += pause_ms
        life, commands = attempt.step(life, event, now_ms, TIMERS)
        has_ended = life.state is AttemptState.ENDED and passed[-1][0].state is not AttemptState.ENDED
        assert has_ended == any(isinstance(command, attempt.Ended) for command in commands)
        passed.append((life, now_ms))
    return passed


@given(histories, rules)
@settings(max_examples=examples(300))
def test_ends_causes_and_deadlines_stay(history: list[tuple[attempt.Event, int]], rule: NodeLossRule) -> None:
    passed = lives(history, rule)
    for (before, _), (after, _) in pairwise(passed):
        if before.ending is not None:
            assert after.ending == before.ending
        if before.state is AttemptState.ENDED:
            assert after.state is AttemptState.ENDED
        if before.stop is not None:
            assert after.stop is not None
            assert after.stop.deadline_ms <= before.stop.deadline_ms


@given(histories, rules)
@settings(max_examples=examples(200))
def test_an_attempt_whose_hosts_are_all_gone_ends(history: list[tuple[attempt.Event, int]], rule: NodeLossRule) -> None:
    life, now_ms = lives(history, rule)[-1]
    for later_ms in (2, 4):
        gone = attempt.Tick({}, -TIMERS.no_expiry_after_start_ms)
        life, _ = attempt.step(life, gone, now_ms + later_ms * TIMERS.server_lease_ms, TIMERS)
    assert life.state is AttemptState.ENDED


@given(histories, rules, nodes)
@settings(max_examples=examples(200))
def test_a_granted_claim_is_granted_again(
    history: list[tuple[attempt.Event, int]], rule: NodeLossRule, node: NodeId
) -> None:
    life, now_ms = lives(history, rule)[-1]
    claim = attempt.ClaimRequested(node, FENCE, "boot1", "n")
    granted, commands = attempt.step(life, claim, now_ms, TIMERS)
    again, repeated = attempt.step(granted, claim, now_ms, TIMERS)
    # A first grant may also be the last one that the others waited for: they are woken once.
    assert repeated == tuple(command for command in commands if not isinstance(command, attempt.Wake))
    assert again == granted


@given(histories, rules)
@settings(max_examples=examples(200))
def test_an_ended_attempt_waits_for_no_host_that_may_still_run(
    history: list[tuple[attempt.Event, int]], rule: NodeLossRule
) -> None:
    life, _ = lives(history, rule)[-1]
    if life.state is AttemptState.ENDED:
        may_run = {HostPartState.CLAIMED, HostPartState.STARTED}
        assert all(part.state not in may_run or part.is_past_lease for part in life.hosts)


host_events: st.SearchStrategy[host.Event] = st.one_of(
    st.builds(
        host.HeartbeatAnswered,
        sent_ms=times,
        lease_ms=st.just(TIMERS.agent_lease_ms),
        unclaimed=st.sampled_from(((), ((ATTEMPT, FENCE),))),
        stops=st.sampled_from((None, {ATTEMPT: ("cancel", 30_000)}, {ATTEMPT: ("stale", 0)})),
        go=st.sampled_from(((), (ATTEMPT,))),
    ),
    st.builds(host.ClaimGranted, st.just(ATTEMPT), st.just(JOB), times, st.just(TIMERS.agent_lease_ms), st.booleans()),
    st.sampled_from(
        (
            host.ClaimRefused(ATTEMPT),
            host.HostReady(ATTEMPT),
            host.GoReceived(ATTEMPT),
            host.ProgramStarted(ATTEMPT),
            host.ProgramExited(ATTEMPT),
            host.ProvedClean(ATTEMPT),
            host.Tick(),
        )
    ),
)


@given(st.lists(st.tuples(host_events, st.integers(0, TIMERS.agent_lease_ms // 2)), max_size=25))
@settings(max_examples=examples(300))
def test_on_a_host_phases_only_advance_and_kill_times_only_near(history: list[tuple[host.Event, int]]) -> None:
    ledger, now_ms = HostLedger("boot1"), 0
    order = list(host.Phase)
    for event, pause_ms in history:
        now_ms += pause_ms
        before = ledger.records.get(ATTEMPT)
        ledger, commands = host.step(ledger, event, now_ms)
        after = ledger.records.get(ATTEMPT)
        if before is not None and after is not None:
            assert order.index(after.phase) >= order.index(before.phase)
            assert after.lease_until_ms >= before.lease_until_ms
            if before.kill_at_ms is not None:
                assert after.kill_at_ms is not None
                assert after.kill_at_ms <= before.kill_at_ms
        if host.StartProgram(ATTEMPT) in commands:
            assert after is not None
            assert after.has_go or not after.awaits_go
            assert host.may_start(after, now_ms)


@given(st.lists(st.tuples(boots, st.integers(0, 5)), max_size=30))
def test_a_boot_that_is_past_is_never_received_again(beats: list[tuple[str, int]]) -> None:
    hearing: LastContact | None = None
    for now_ms, (boot_id, seq) in enumerate(beats):
        heard = accept_heartbeat(hearing, boot_id, seq, now_ms)
        if hearing is not None and heard is not None:
            assert boot_id not in hearing.past_boots
            assert heard.boot_id != hearing.boot_id or heard.seq > hearing.seq
        hearing = heard or hearing
