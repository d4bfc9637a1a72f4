"""An attempt's own time: first executions, replays, saves, restores, hangs, rollbacks and slow ranks."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ledger.attempt_claims import FIRST_STEP, LAUNCHES, NO_STEP, STOPS, UNCLAIMED, accounts_of, claims_of
from ledger.claims import Claim, settle
from ledger.facts import Attempt, EarlierAttempt, Period, Rollback, Slow, Steps
from muster.domain.states import Cause

HOUR_MS = 3_600_000


def attempt(**more: Any) -> Attempt:
    """Return an attempt placed at 0, claimed at 10, running at 20, with its first step at 40."""
    one = {"claimed_ms": 10, "running_ms": 20, "first_step_ms": 40, **more}
    return Attempt("attempt_a", 0, **one)


def timeline(one: Attempt, end_ms: int = 200) -> list[tuple[str, str, int, int]]:
    claims = claims_of(one)
    settled = settle([*claims.firm, *claims.while_in_contact], 0, end_ms)
    assert {each.attempt_id for each in settled} == {"attempt_a"}
    return [(each.account.value, each.cause, each.start_ms, each.end_ms) for each in settled]


def summed(one: Attempt, end_ms: int = 200) -> dict[tuple[str, str], int]:
    found: Counter[tuple[str, str]] = Counter()
    for account, cause, start_ms, until_ms in timeline(one, end_ms):
        found[account, cause] += until_ms - start_ms
    return dict(found)


def test_the_start_has_its_phases_except_the_read_of_a_checkpoint() -> None:
    assert timeline(attempt(restores=(Period(25, 35),), steps=(Steps(1, 4, 200, 160),))) == [
        ("starting", UNCLAIMED, 0, 10),
        ("starting", LAUNCHES, 10, 20),
        ("starting", FIRST_STEP, 20, 25),
        ("restoring", "", 25, 35),
        ("starting", FIRST_STEP, 35, 40),
        ("productive", "", 40, 200),
    ]


def test_the_accounts_of_a_part_of_its_time_end_with_the_attempt() -> None:
    one = attempt(steps=(Steps(1, 4, 100, 60),), ended_ms=120)
    assert accounts_of(one, 30, 500) == {"starting": 10, "productive": 60, "idle": 20}
    assert accounts_of(one, 120, 500) == accounts_of(one, 90, 90) == {}


def test_an_attempt_that_never_trains_starts_until_it_is_stopped() -> None:
    never = attempt(first_step_ms=None, stopping_ms=150)
    assert summed(never) == {
        ("starting", UNCLAIMED): 10,
        ("starting", LAUNCHES): 10,
        ("starting", FIRST_STEP): 130,
        ("idle", STOPS): 50,
    }
    unclaimed = Attempt("attempt_a", 0, ended_ms=90)
    assert summed(unclaimed) == {("starting", UNCLAIMED): 90, ("idle", NO_STEP): 110}


def test_the_first_step_is_when_the_facts_have_no_earlier_one() -> None:
    one = attempt(first_step_ms=None, steps=(Steps(5, 5, 100, 30),))
    assert summed(one, 100)["starting", FIRST_STEP] == 50


def test_a_save_counts_as_far_as_it_stops_the_steps() -> None:
    one = attempt(steps=(Steps(1, 4, 100, 60, 15), Steps(5, 6, 140, 20)), saves=(Period(90, 130),))
    assert timeline(one)[3:] == [
        ("productive", "", 40, 85),
        ("saving", "", 85, 120),
        ("productive", "", 120, 140),
        ("idle", NO_STEP, 140, 200),
    ]


def test_a_step_counts_as_first_once_and_then_by_why_it_was_lost() -> None:
    """Attempt 1 trained to 30 and was reclaimed, attempt 2 resumed at 10 and trained to 16, then its GPU failed."""
    earlier = (
        EarlierAttempt(1, 30, Cause.RECLAIMED, ("reclaim_1",)),
        EarlierAttempt(2, 16, Cause.GPU_FAULT, ("ev_1",)),
    )
    one = attempt(steps=(Steps(13, 32, 240, 200),), earlier=earlier)
    assert timeline(one, 240)[3:] == [
        ("replayed", "gpu_fault", 40, 80),
        ("reclaim_lost", "reclaimed", 80, 220),
        ("productive", "", 220, 240),
    ]
    claims = {one.cause: one.evidence for one in claims_of(one).firm}
    assert (claims["reclaimed"], claims["gpu_fault"]) == (("reclaim_1",), ("ev_1",))


def test_steps_are_trained_again_no_longer_than_their_attempt_had_its_gpus() -> None:
    """A program that reports steps of an earlier attempt without end would otherwise train for nothing."""
    earlier = (EarlierAttempt(1, 10**9, Cause.GPU_FAULT, ("ev_1",), assigned_ms=50),)
    one = attempt(steps=(Steps(1, 4, 100, 60), Steps(5, 8, 200, 100)), earlier=earlier)
    assert timeline(one)[3:] == [("replayed", "gpu_fault", 40, 90), ("productive", "", 90, 200)]


def test_the_replay_of_steps_includes_their_saves_and_slowness() -> None:
    one = attempt(
        steps=(Steps(1, 4, 200, 160, 40),),
        earlier=(EarlierAttempt(1, 4, Cause.NODE_LOST),),
        slow=(Slow(0, None, "verdict_1", usual_step_ms=10),),
    )
    assert summed(one)["replayed", "node_lost"] == 160


def test_a_rollback_makes_the_steps_since_worthless() -> None:
    steps = (Steps(1, 4, 80, 40), Steps(5, 8, 120, 40), Steps(5, 9, 200, 50))
    one = attempt(steps=steps, rollbacks=(Rollback(130, 8, 6, "value_fault", evidence=("verdict_1",)),))
    assert timeline(one)[3:] == [
        ("productive", "", 40, 100),
        ("lost", "value_fault", 100, 130),
        ("idle", NO_STEP, 130, 150),
        ("productive", "", 150, 200),
    ]
    since = replace(one, rollbacks=(Rollback(130, 8, 2, "value_fault", since_ms=60),))
    assert ("lost", "value_fault", 60, 130) in timeline(since)
    from_start = replace(one, rollbacks=(Rollback(130, 8, 0, "value_fault"),))
    assert ("lost", "value_fault", 40, 130) in timeline(from_start)


def test_a_hang_is_lost_from_the_last_progress_on() -> None:
    one = attempt(steps=(Steps(1, 4, 80, 40),), hangs=(Period(80, None, "collective", ("verdict_1",)),), ended_ms=180)
    assert timeline(one)[3:] == [
        ("productive", "", 40, 80),
        ("lost", "collective", 80, 180),
        ("idle", NO_STEP, 180, 200),
    ]


def test_a_slow_rank_costs_what_is_beyond_the_usual_step() -> None:
    steps = (Steps(1, 4, 80, 40), Steps(5, 8, 160, 80))
    one = attempt(steps=steps, slow=(Slow(120, 140, "verdict_1", "gpu"),))
    assert timeline(one, 160)[3:] == [
        ("productive", "", 40, 130),
        ("slowed", "gpu", 130, 140),
        ("productive", "", 140, 160),
    ], "of 80 ms 40 are beyond the usual, and the verdict stands in a quarter of them"
    known = attempt(steps=steps[1:], slow=(Slow(120, 140, "verdict_1", "gpu", usual_step_ms=20),))
    assert ("slowed", "gpu") not in summed(known)
    unknown = attempt(steps=steps[1:], slow=(Slow(0, None, "verdict_1", "gpu"),))
    assert ("slowed", "gpu") not in summed(unknown)


def test_steps_that_overlap_or_come_twice_count_once() -> None:
    steps = (Steps(1, 4, 80, 40), Steps(1, 4, 80, 40), Steps(3, 6, 100, 60), Steps(4, 4, 90, 50))
    assert summed(attempt(steps=steps))["productive", ""] == 60
    late = attempt(
        steps=(Steps(1, 1, 100, 60), Steps(2, 2, 120, 80)), slow=(Slow(0, None, "verdict_1", usual_step_ms=60),)
    )
    assert summed(late)["productive", ""] == 80, "the second step took the 20 ms that the first one has not"


@pytest.mark.parametrize("off_ms", [-5 * HOUR_MS, 5 * HOUR_MS])
def test_a_clock_wrong_by_hours_keeps_the_steps_within_the_attempt(off_ms: int) -> None:
    right = (Steps(1, 4, 80, 40), Steps(5, 8, 160, 80))
    wrong = tuple(replace(one, end_ms=one.end_ms + off_ms) for one in right)
    one = attempt(steps=wrong, first_step_ms=None, ended_ms=180)
    found = timeline(one)
    assert all(start_ms >= 10 and end_ms <= 180 for account, _, start_ms, end_ms in found if account == "productive")
    assert sum(end_ms - start_ms for account, _, start_ms, end_ms in found if account == "productive") >= 80


def test_what_is_reported_after_the_clock_was_set_wrong_is_not_counted_elsewhere() -> None:
    steps = (Steps(1, 4, 80, 40), Steps(5, 8, 160 + 5 * HOUR_MS, 80))
    assert summed(attempt(steps=steps, ended_ms=180), 6 * HOUR_MS)["productive", ""] == 40


def test_no_report_counts_before_the_claim_or_after_the_newest_facts() -> None:
    one: list[Claim] = list(claims_of(attempt(steps=(Steps(1, 1, 190, 500),), known_until_ms=150)).firm)
    assert [(one.start_ms, one.end_ms) for one in one] == [(10, 150)]
