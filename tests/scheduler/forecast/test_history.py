"""The run time predicted from similar jobs: for the place in the queue and for backfill, from enough runs alone."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.forecast.history import predicted_s
from scheduler.model import Workload
from scheduler.planner import plan
from scheduler.queue.order import in_order
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, host, job, of_host, running

HOUR_S = 3600.0


@given(st.lists(st.floats(0, 1e6), max_size=40))
def test_nine_of_ten_take_no_longer_and_too_few_runs_state_nothing(runs: list[float]) -> None:
    found = predicted_s(runs, DEFAULT_POLICY)
    if len(runs) < 9:
        assert found is None
        return
    assert found is not None
    assert sum(run <= found for run in runs) >= 0.9 * (len(runs) + 1)
    assert found in runs


def test_one_run_that_never_ended_moves_nothing() -> None:
    runs = [100.0 + number for number in range(19)]
    assert predicted_s([*runs, 1e9], DEFAULT_POLICY) == predicted_s([*runs, 200.0], DEFAULT_POLICY) == 118.0


def test_within_a_tier_a_job_whose_like_were_short_goes_early_unless_it_states_a_wall_time() -> None:
    short = replace(job("short"), predicted_s=600.0)
    unknown = job("unknown")
    said = replace(job("said"), expected_s=10 * HOUR_S, predicted_s=600.0)
    order = [one.job_id for one in in_order([unknown, said, short], DEFAULT_POLICY, NOW_MS, 8)]
    assert order == ["short", "said", "unknown"]


def test_it_runs_where_a_place_is_on_hold_until_after_its_like_had_ended() -> None:
    busy = running("busy", [f"b-{slot}" for slot in range(8)], tier="on_demand", ends_minutes=150)  # not firm
    gpus = hold([*host("a", 8), *host("b", 8)], of_host("b"))
    gang = replace(job("gang", nodes=2, gpus=8), queued_ms=NOW_MS - 600 * MINUTE_MS, expected_s=HOUR_S)
    starts = []
    for believed_s in (None, 0.5 * HOUR_S, 3 * HOUR_S):
        behind = replace(job("behind", gpus=8), queued_ms=NOW_MS, predicted_s=believed_s)
        if believed_s is not None:
            behind = replace(behind, tier="spot")
        found = plan(gpus, [gang, behind], DEFAULT_POLICY, Workload(NOW_MS, (busy,)))
        starts.append([item.job_id for item in found.placements])
    assert starts == [[], ["behind"], []]
    assert all(one != other for one, other in pairwise(starts))
