"""When a call is sent again: pauses, budgets, and the pause in which a silent server is left alone."""

import random

import pytest

from muster.client import Problem, UnreachableError
from muster.client.retries import (
    ALLOWANCE,
    CALL_BUDGET_S,
    CLOSED_FOR_CAP_S,
    FAILURES_TO_OPEN,
    PAUSE_BASE_S,
    UNREACHABLE_TRIES,
    Retries,
    RetryPolicy,
)
from tests.hand_clock import HandClock

SILENT = UnreachableError("refused")
FULL = Problem(503, "unavailable", "full")


@pytest.fixture
def clock() -> HandClock:
    return HandClock(100.0)


@pytest.fixture
def policy(clock: HandClock) -> RetryPolicy:
    return RetryPolicy("https://muster.example", clock, random.Random(1))  # noqa: S311  # seeded, so that a test repeats


def begun(policy: RetryPolicy, *, is_repeatable: bool = True) -> Retries:
    return policy.begin(is_repeatable=is_repeatable)


def silence(policy: RetryPolicy) -> None:
    """Make one call without an answer, with all its tries."""
    tries = begun(policy)
    for _ in range(UNREACHABLE_TRIES - 1):
        tries.pause_after(SILENT)
    with pytest.raises(UnreachableError, match="refused"):
        tries.pause_after(SILENT)


def test_pauses_grow_and_are_as_random_as_can_be(policy: RetryPolicy) -> None:
    for number in (1, 2, 3):
        pauses = [policy.pause_s(number) for _ in range(500)]
        most = PAUSE_BASE_S * 2**number
        assert 0 <= min(pauses) < most / 20
        assert most * 0.95 < max(pauses) <= most


def test_a_pause_is_never_shorter_than_the_server_requests_and_clients_do_not_come_back_together(
    policy: RetryPolicy,
) -> None:
    told = Problem(503, "unavailable", "full", retry_after_s=2)
    pauses = {begun(policy).pause_after(told) for _ in range(5)}
    assert all(2 <= pause <= 2 + PAUSE_BASE_S for pause in pauses)
    assert len(pauses) > 1


def test_a_call_ends_with_its_budget_of_time(policy: RetryPolicy, clock: HandClock) -> None:
    tries = begun(policy)
    tries.pause_after(FULL)
    clock.now_s += CALL_BUDGET_S
    with pytest.raises(Problem):
        tries.pause_after(FULL)


def test_repetitions_are_a_small_part_of_what_is_sent(policy: RetryPolicy) -> None:
    def repetitions_of(num_calls: int) -> int:
        count = 0
        for _ in range(num_calls):
            try:
                begun(policy).pause_after(FULL)
            except Problem:
                continue
            count += 1
        return count

    assert repetitions_of(200) == ALLOWANCE, "what a client may repeat at once"
    for _ in range(48):
        begun(policy).succeeded()
    assert repetitions_of(200) == 6, "and one for each eight successes"


def test_a_silent_server_is_left_alone_for_a_while_and_then_requested_by_one(
    policy: RetryPolicy, clock: HandClock
) -> None:
    for _ in range(FAILURES_TO_OPEN // UNREACHABLE_TRIES):
        silence(policy)
    with pytest.raises(UnreachableError, match=r"https://muster\.example has not answered"):
        begun(policy)
    clock.now_s += CLOSED_FOR_CAP_S
    looking = begun(policy)
    with pytest.raises(UnreachableError):
        begun(policy)  # the others wait for what that one finds
    looking.succeeded()
    begun(policy)


def test_each_check_in_vain_makes_the_pause_longer_up_to_a_limit(policy: RetryPolicy, clock: HandClock) -> None:
    pauses = []
    for _ in range(FAILURES_TO_OPEN):
        policy.note_silence()
    for _ in range(8):
        began_s = clock.now_s
        while True:
            try:
                tries = begun(policy, is_repeatable=False)
            except UnreachableError:
                clock.now_s += 0.05
                continue
            break
        pauses.append(clock.now_s - began_s)
        with pytest.raises(UnreachableError):
            tries.pause_after(SILENT)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(CLOSED_FOR_CAP_S, abs=0.1)


def test_a_server_that_answers_anything_is_not_silent(policy: RetryPolicy) -> None:
    for _ in range(FAILURES_TO_OPEN * 3):
        policy.note_silence()
        policy.note_answer()
    begun(policy)


def test_what_may_happen_once_is_not_repeated_whatever_the_fault(policy: RetryPolicy) -> None:
    for fault in (SILENT, FULL):
        with pytest.raises(type(fault)):
            begun(policy, is_repeatable=False).pause_after(fault)
