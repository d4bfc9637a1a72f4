"""The preflight before placement: which hosts are asked, for how long, and that it never delays a job without end."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.ids import NodeId
from muster.domain.job.preflight import MOST_HOSTS, Ask, GiveUp, MayBePlaced, Preflight, PreflightState, Waits, decide

A, B, C, D = (NodeId(f"node_{letter}") for letter in "abcd")
REQUESTED = Preflight(PreflightState.REQUESTED, A, deadline_ms=1_000, tried=(A,))


def test_the_first_host_that_is_free_is_queried() -> None:
    assert decide(None, [A, B], {A}, 0) == Ask(B, (B,))


def test_where_all_check_others_it_waits() -> None:
    assert decide(None, [A, B], {A, B}, 0) == Waits(None)


def test_where_none_could_check_nothing_is_waited_for() -> None:
    assert decide(None, [], (), 0) == MayBePlaced()


def test_it_waits_for_the_host_that_was_requested() -> None:
    assert decide(REQUESTED, [A, B], {A}, 999) == Waits(A)


def test_past_the_deadline_another_is_queried() -> None:
    assert decide(REQUESTED, [A, B], {A}, 1_000) == Ask(B, (A, B))


def test_a_host_that_is_received_no_more_is_not_waited_for() -> None:
    assert decide(REQUESTED, [B], (), 0) == Ask(B, (A, B))


def test_with_no_other_host_it_is_given_up() -> None:
    assert decide(REQUESTED, [A], {A}, 1_000) == GiveUp((A,))


def test_no_more_than_so_many_hosts_are_queried() -> None:
    look = replace(REQUESTED, node_id=C, tried=(A, B, C))
    assert len(look.tried) == MOST_HOSTS
    assert decide(look, [A, B, C, D], (), 1_000) == GiveUp((A, B, C))


@pytest.mark.parametrize("state", [PreflightState.PASSED, PreflightState.ABANDONED])
def test_what_was_seen_to_is_not_checked_again_until_something_was_lacking(state: PreflightState) -> None:
    look = replace(REQUESTED, state=state)
    assert decide(look, [A], (), 5_000) == MayBePlaced()
    assert decide(look, [A], (), 5_000, is_out_of_date=True) == Ask(A, (A,))


def test_one_that_was_kept_and_released_is_checked_again() -> None:
    assert decide(replace(REQUESTED, state=PreflightState.FAILED), [A], (), 0) == Ask(A, (A,))


@given(
    st.lists(st.sets(st.sampled_from([A, B, C, D])), min_size=8, max_size=8),
    st.lists(st.sets(st.sampled_from([A, B, C, D])), min_size=8, max_size=8),
)
def test_a_job_waits_for_no_more_than_so_many_deadlines(able: list[set[NodeId]], busy: list[set[NodeId]]) -> None:
    """No host ever answers: hosts come and go, check others, and time passes from deadline to deadline."""
    look: Preflight | None = None
    asked: list[NodeId] = []
    for turn in range(8):
        now_ms = turn * 1_000
        found = decide(look, sorted(able[turn]), busy[turn] if turn < 3 else (), now_ms)
        if isinstance(found, MayBePlaced | GiveUp):
            break
        if isinstance(found, Ask):
            asked.append(found.node_id)
            look = Preflight(PreflightState.REQUESTED, found.node_id, now_ms + 1_000, found.tried)
    else:
        pytest.fail("it still waits")
    assert len(asked) == len(set(asked)) <= MOST_HOSTS
