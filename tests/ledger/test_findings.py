"""Findings about the speed of a training, with values computed by hand."""

import pytest

from ledger.findings import DAY_MS, FindingKind, Report, StepShares, findings_of, shares_of, words_of
from muster.domain.policy.objectives import FindingPolicy

POLICY = FindingPolicy()
NOW_MS = 10 * DAY_MS


def pace(**parts: float | None) -> dict[str, float | None]:
    """A step of one second, of which the parts that are not named are forward and backward."""
    named = sum(value or 0 for name, value in parts.items() if name in {"data_s", "collective_s", "optimizer_s"})
    rest = (1 - named) / 2
    usual = {"data_s": 0.0, "forward_s": rest, "backward_s": rest, "collective_s": 0.0, "optimizer_s": 0.0}
    return {**usual, "other_s": 0.0, "checkpoint_s": 5.0, "mfu": None, "tokens_per_s": None, **parts}


def report(at_ms: int = NOW_MS, world_size: int = 2, **parts: float | None) -> Report:
    return Report(at_ms, world_size, pace(**parts))


def test_a_training_that_is_well_has_none() -> None:
    assert findings_of([report(collective_s=0.10, data_s=0.10, mfu=0.35)], [], POLICY) == []


def test_low_mfu_states_what_the_least_healthy_would_bring() -> None:
    [found] = findings_of([report(mfu=0.20), report(mfu=0.30)], [], POLICY)
    assert found.kind is FindingKind.MFU_LOW
    assert found.value == pytest.approx(0.25)
    assert found.gain == pytest.approx(1.4)
    assert words_of(found) == "MFU is 25%, less than 35%: at 35% it would have 1.40 × its speed"


def test_an_unknown_mfu_is_not_a_low_one() -> None:
    assert findings_of([report(mfu=0.20), report(mfu=None)], [], POLICY) == []


def test_communication_of_more_than_a_tenth_has_the_gain_of_a_tenth() -> None:
    [found] = findings_of([report(collective_s=0.16), report(collective_s=0.14)], [], POLICY)
    assert (found.kind, found.bar) == (FindingKind.COMMUNICATION_HIGH, 0.10)
    assert found.value == pytest.approx(0.15)
    assert found.gain == pytest.approx(0.9 / 0.85)
    assert "if they took 10%, it would have 1.06 × its speed" in words_of(found)


def test_communication_of_more_than_a_fifth_is_a_fault() -> None:
    [found] = findings_of([report(collective_s=0.21)], [], POLICY)
    assert (found.kind, found.bar) == (FindingKind.COMMUNICATION_FAULT, 0.20)
    assert found.gain == pytest.approx(1.139, abs=0.001)
    assert words_of(found).endswith("if they took 10%, it would have 1.14 × its speed")


def test_collectives_that_no_rank_can_see_are_no_finding() -> None:
    assert findings_of([report(collective_s=None), report(collective_s=0.5)], [], POLICY) == []


def test_shares_are_means_over_the_ranks_and_unknown_where_one_does_not_report() -> None:
    found = shares_of([pace(collective_s=0.1, data_s=0.2, mfu=0.4), pace(collective_s=0.3, data_s=0.0, mfu=0.2)])
    assert [found.mfu, found.communication, found.loader] == pytest.approx([0.3, 0.2, 0.1])
    half = shares_of([pace(mfu=0.4), pace(collective_s=None)])
    assert (half.mfu, half.communication, half.loader) == (None, None, 0.0)
    assert shares_of([]) == shares_of([{"data_s": 0.0}]) == StepShares()


def test_a_wait_for_data_of_more_than_a_tenth_is_the_loader() -> None:
    [found] = findings_of([report(data_s=0.40)], [], POLICY)
    assert found.kind is FindingKind.LOADER_BOUND
    assert found.value == pytest.approx(0.60)
    assert found.gain == pytest.approx(1.5)


def test_saves_are_no_part_of_a_step() -> None:
    assert findings_of([report(checkpoint_s=1000.0)], [], POLICY) == []


def test_the_largest_gain_comes_first() -> None:
    found = findings_of([report(data_s=0.4, collective_s=0.15, mfu=0.34)], [], POLICY)
    assert [each.kind for each in found] == [
        FindingKind.LOADER_BOUND,
        FindingKind.COMMUNICATION_HIGH,
        FindingKind.MFU_LOW,
    ]


def day(tokens_per_s: float, days_ago: int, *, world_size: int = 2, num: int = 10) -> list[Report]:
    begins = NOW_MS - days_ago * DAY_MS
    return [report(begins - hour * 3_600_000, world_size, tokens_per_s=tokens_per_s) for hour in range(num)]


def test_a_throughput_below_that_of_the_day_before_states_the_loss() -> None:
    [found] = findings_of([], [*day(800.0, 0), *day(1000.0, 1)], POLICY)
    assert (found.kind, found.value, found.bar) == (FindingKind.THROUGHPUT_DOWN, 1600.0, 2000.0)
    assert found.gain == pytest.approx(1.25)
    assert (found.until_ms - found.since_ms, found.num_reports) == (2 * DAY_MS, 20)
    assert words_of(found).startswith("1,600 tokens/s in the last 24 h, 2,000 in the 24 h before")


def test_a_tenth_less_is_within_the_bounds_and_more_is_fine() -> None:
    assert findings_of([], [*day(900.0, 0), *day(1000.0, 1)], POLICY) == []
    assert findings_of([], [*day(1100.0, 0), *day(1000.0, 1)], POLICY) == []


def test_another_number_of_ranks_is_not_compared() -> None:
    assert findings_of([], [*day(500.0, 0), *day(1000.0, 1, world_size=4)], POLICY) == []


def test_too_few_reports_are_no_median() -> None:
    assert findings_of([], [*day(500.0, 0), *day(1000.0, 1, num=9)], POLICY) == []


def test_without_tokens_steps_are_compared() -> None:
    slow = [Report(NOW_MS - hour, 2, {"forward_s": 0.5}) for hour in range(10)]
    fast = [Report(NOW_MS - DAY_MS - hour, 2, {"forward_s": 0.25}) for hour in range(10)]
    [found] = findings_of([], [*slow, *fast], POLICY)
    assert (found.unit, found.value, found.bar, found.gain) == ("steps/s", 2.0, 4.0, 2.0)


def test_a_program_without_a_pace_has_none() -> None:
    assert findings_of([Report(NOW_MS, 2, {})], [Report(NOW_MS, 2, {})], POLICY) == []


def test_numbers_that_no_answer_can_hold_are_no_findings() -> None:
    tiny = [Report(NOW_MS, 2, {"forward_s": 1.0, "mfu": 5e-324})]
    assert findings_of(tiny, [], POLICY) == []
    before = [report(NOW_MS - DAY_MS - hour, 2**31 - 1, tokens_per_s=1e300) for hour in range(10)]
    now = [report(NOW_MS - hour, 2**31 - 1, tokens_per_s=1e-300) for hour in range(10)]
    assert findings_of([], [*before, *now], POLICY) == []
