"""The definitions: one of each of M1 to M15 at least, each whole, and values that follow from parts."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ledger.figures.convergence import DIVERGED, FELL, ROSE, UNCLEAR, outcome_of
from ledger.figures.definitions import Figure, Kind, Sum, value_of
from ledger.figures.faults import FAULT_OF_CAUSE, Fault
from ledger.figures.hours import COUNTED_AT, GPUS_COUNTED_AT, MANY_ATTEMPTS, is_due, is_last, times_for
from ledger.figures.indicators import INDICATORS
from muster.domain.states import Cause

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_each_of_the_fifteen_is_defined() -> None:
    assert {figure.indicator for figure in INDICATORS.values()} == {f"M{number}" for number in range(1, 16)}


@pytest.mark.parametrize("figure", INDICATORS.values(), ids=str)
def test_a_definition_is_whole(figure: Figure) -> None:
    assert figure.meaning.endswith(".")
    assert figure.counted_from
    assert figure.stored_as in INDICATORS
    assert figure.top
    assert figure.bottom


def test_a_figure_is_made_of_its_own_parts_alone() -> None:
    with pytest.raises(ValueError, match="no parts"):
        replace(INDICATORS["waste"], top=("nowhere",))


def test_values_follow_from_parts() -> None:
    figure = replace(INDICATORS["waste"], parts={"a": "", "b": ""}, top=("a",), bottom=("a", "b"))
    sums = {"a": Sum(1, 30.0), "b": Sum(4, 10.0)}
    assert value_of(replace(figure, kind=Kind.SHARE), sums) == 1 / 5
    assert value_of(replace(figure, kind=Kind.MEAN), sums) == 30 / 5
    assert value_of(replace(figure, kind=Kind.RATE), sums) == 30 / 40
    assert value_of(figure, {}) is None


def test_faults_of_the_infrastructure_and_the_job_are_apart() -> None:
    assert FAULT_OF_CAUSE[Cause.GPU_FAULT] is FAULT_OF_CAUSE[Cause.NCCL_TIMEOUT] is Fault.INFRASTRUCTURE
    assert FAULT_OF_CAUSE[Cause.GPU_OOM] is FAULT_OF_CAUSE[Cause.DIVERGED] is FAULT_OF_CAUSE[Cause.HANG] is Fault.OWN
    assert FAULT_OF_CAUSE[Cause.RECLAIMED] is FAULT_OF_CAUSE[Cause.MAINTENANCE] is Fault.MOVED
    assert FAULT_OF_CAUSE[Cause.WALLTIME] is Fault.LIMIT
    assert set(FAULT_OF_CAUSE) == set(Cause)


def test_an_hour_is_counted_often_then_seldom_then_never() -> None:
    counted_at, minutes = None, []
    for minute in range(60 * 30):
        now = NOON + timedelta(minutes=minute)
        if is_due(NOON, counted_at, now):
            counted_at = now
            minutes.append(minute)
    assert minutes == [15, 30, 45, 65, 120, 420, 60 * 27]
    assert [is_last(NOON, NOON + each) for each in COUNTED_AT] == [False] * 6 + [True]
    assert not is_due(NOON, None, NOON + timedelta(minutes=119), GPUS_COUNTED_AT)
    assert is_due(NOON, None, NOON + timedelta(days=90))


def test_an_hour_of_many_attempts_is_counted_twice() -> None:
    times = times_for(MANY_ATTEMPTS + 1)
    assert times_for(MANY_ATTEMPTS) == COUNTED_AT
    assert not is_due(NOON, None, NOON + timedelta(minutes=64), times)
    assert is_due(NOON, None, NOON + timedelta(minutes=65), times)
    assert not is_due(NOON, NOON + timedelta(minutes=65), NOON + timedelta(hours=26), times)
    assert is_last(NOON, NOON + times[-1])


def test_a_loss_is_judged_by_its_ends() -> None:
    falling = [(step, 10.0 - step / 10, None) for step in range(50)]
    assert outcome_of(falling) == FELL
    assert outcome_of([*falling, (50, 99.0, None)]) == FELL, "one last jump is noise"
    assert outcome_of([(step, 1.0, None) for step in range(50)]) == ROSE
    assert outcome_of(falling[:9]) == UNCLEAR
    assert outcome_of([*falling, (51, float("nan"), None)]) == DIVERGED
    assert outcome_of([], is_diverged=True) == DIVERGED
