"""How often GPUs fail: what was expected at first, the fleet's own record in the end."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.domain.job.checkpoint_interval import interval_in_words
from muster.domain.job.failure_rate import Record, failures_per_gpu_hour, own_failures_per_gpu_hour, rule_for_program
from muster.domain.policy.training import CheckpointIntervalPolicy
from muster.train.checkpoint.interval import PRIOR_FAILURES_PER_GPU_HOUR, IntervalRule
from muster.wire.training import CheckpointInterval

EXPECTED = CheckpointIntervalPolicy()
RECORDS = st.builds(Record, st.integers(0, 10_000), st.floats(0, 1e9))


def test_an_empty_fleet_has_the_rate_that_is_expected_and_muster_run_too() -> None:
    assert failures_per_gpu_hour(Record(), EXPECTED) == pytest.approx(1 / 50_000)
    alone = IntervalRule()
    assert failures_per_gpu_hour(Record(), EXPECTED) == pytest.approx(PRIOR_FAILURES_PER_GPU_HOUR)
    assert (alone.min_s, alone.max_s) == (EXPECTED.min_s, EXPECTED.max_s), "a script without Muster uses the same"
    assert rule_for_program(Record(), EXPECTED, 0)["num_gpus"] is None


@given(RECORDS)
def test_it_lies_between_what_was_expected_and_what_was_seen(record: Record) -> None:
    found = failures_per_gpu_hour(record, EXPECTED)
    expected = 1 / EXPECTED.prior_gpu_hours_per_failure
    if record.gpu_hours < 1e-3:
        assert found > 0
        return
    seen = record.num_failures / record.gpu_hours
    assert min(seen, expected) * (1 - 1e-9) <= found <= max(seen, expected) * (1 + 1e-9)


@given(RECORDS, st.integers(1, 100), st.floats(1, 1e6))
def test_each_failure_raises_it_and_each_quiet_hour_lowers_it(record: Record, more: int, hours: float) -> None:
    found = failures_per_gpu_hour(record, EXPECTED)
    assert failures_per_gpu_hour(Record(record.num_failures + more, record.gpu_hours), EXPECTED) > found
    assert failures_per_gpu_hour(Record(record.num_failures, record.gpu_hours + hours), EXPECTED) < found


def test_a_large_fleets_own_record_is_all_that_counts() -> None:
    assert failures_per_gpu_hour(Record(500, 1e6), EXPECTED) == pytest.approx(5e-4, rel=0.01)


def test_one_failure_of_a_jobs_own_states_nothing_and_many_state_all() -> None:
    assert own_failures_per_gpu_hour(Record(1, 0.1)) == 0.0
    assert own_failures_per_gpu_hour(Record(3, 0.0)) == 0.0
    assert own_failures_per_gpu_hour(Record(11, 5.0)) == pytest.approx(2.0)


@given(RECORDS, RECORDS)
def test_a_job_never_saves_less_often_than_the_fleets_failures_ask_for(fleet: Record, own: Record) -> None:
    rate = rule_for_program(fleet, EXPECTED, 8, own)["failures_per_gpu_hour"]
    assert rate == max(failures_per_gpu_hour(fleet, EXPECTED), own_failures_per_gpu_hour(own))


def test_the_sentence_states_what_it_follows_from() -> None:
    told = {"interval_s": 600.0, "bound": "none", "step_s": 2.0, "stall_s": 0.5, "save_s": 4.0, "mtbf_s": 360_000.0}
    assert interval_in_words({**told, "num_gpus": 16}) == (
        "a checkpoint every 600 s, about 300 steps: which costs the least; each stalls training for 0.5 s and "
        "takes 4 s; 16 GPUs fail once in 100 h"
    )
    assert "each step: the most" in interval_in_words({**told, "num_gpus": 1, "step_s": 900.0, "bound": "max"})
    assert "fail once in 25,000 h" in interval_in_words({**told, "num_gpus": 2, "mtbf_s": 9e7})


SPAN = st.floats(0, 1e15)


@given(SPAN, SPAN, SPAN, SPAN, SPAN, st.sampled_from(["none", "min", "max", "save"]), st.integers(1, 2**31 - 1))
@example(1e15, 0.0, 0.0, 5e-324, 0.0, "none", 1)
def test_whatever_a_rank_may_state_becomes_a_sentence(
    interval_s: float, stall_s: float, save_s: float, step_s: float, mtbf_s: float, bound: str, num_gpus: int
) -> None:
    said = {
        "type": "checkpoint_interval",
        "step": 1,
        "interval_s": interval_s,
        "stall_s": stall_s,
        "save_s": save_s,
        "step_s": step_s,
        "mtbf_s": mtbf_s,
        "failures_per_gpu_hour": 0.1,
        "num_gpus": num_gpus,
        "bound": bound,
    }
    message = msgspec.convert(said, CheckpointInterval)
    assert interval_in_words(msgspec.structs.asdict(message)).startswith("a checkpoint every ")


@pytest.mark.parametrize("wrong", [{"bound": "none\n"}, {"interval_s": 1e300}, {"step_s": -1.0}, {"num_gpus": 0}])
def test_what_none_could_mean_is_no_message(wrong: dict[str, object]) -> None:
    said: dict[str, object] = dict.fromkeys(("interval_s", "stall_s", "save_s", "step_s", "mtbf_s"), 1.0)
    said |= {"type": "checkpoint_interval", "failures_per_gpu_hour": 0.1, "num_gpus": 1, "bound": "none", "step": 1}
    msgspec.convert(said, CheckpointInterval)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**said, **wrong}, CheckpointInterval)
