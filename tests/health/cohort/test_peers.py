"""GPUs of one gang compared: which is apart, under which load, and from when on it is a finding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.cohort.peers import COMPARED_METRICS, Memory, Round, apart_now, judge_round, medians
from muster.domain.evidence.findings import Finding, Severity
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.scoring import PeerPolicy
from tests.health.case_factory import MINUTE, NOW_MS, POLICY

RULES = PeerPolicy()
LIKE = (680.0, 1900.0, 62.0, 98.0)
"""Power, SM clock, temperature and utilisation of a GPU that works."""


def seen(*rows: tuple[float, float, float, float], at_ms: int = NOW_MS, gangs: list[int] | None = None) -> Round:
    gpus = [GpuUuid(f"GPU-{number}") for number in range(len(rows))]
    numbers = np.array(gangs or [0] * len(rows), dtype=np.int64)
    return Round(
        at_ms, gpus, [NodeId("node_1")] * len(rows), numbers, np.array(rows).reshape(len(rows), len(COMPARED_METRICS))
    )


def gang(*others: tuple[float, float, float, float], num_alike: int = 7) -> Round:
    """``others`` first, then GPUs that differ from each other by very little."""
    alike = [(LIKE[0] + 2 * number, LIKE[1] + 5 * number, LIKE[2] + number % 3, LIKE[3]) for number in range(num_alike)]
    return seen(*others, *alike)


def apart(found: Round, rules: PeerPolicy = RULES) -> list[tuple[int, str]]:
    return [(one.index, COMPARED_METRICS[one.metric].name) for one in apart_now(found, rules)]


def test_gpus_that_do_the_same_are_not_apart() -> None:
    assert apart(gang()) == []


@pytest.mark.parametrize(
    ("one", "metric"),
    [
        ((400.0, 1900.0, 62.0, 98.0), "power_w"),
        ((680.0, 1200.0, 62.0, 98.0), "sm_clock_mhz"),
        ((680.0, 1900.0, 88.0, 98.0), "temperature_c"),
        ((680.0, 1900.0, 62.0, 60.0), "utilisation_percent"),
    ],
)
def test_one_that_is_apart_is_named_with_the_metric(one: tuple[float, float, float, float], metric: str) -> None:
    assert apart(gang(one)) == [(0, metric)]


@pytest.mark.parametrize("one", [(680.0, 2400.0, 62.0, 98.0), (680.0, 1900.0, 30.0, 98.0)])
def test_to_clock_higher_or_stay_cooler_is_no_fault(one: tuple[float, float, float, float]) -> None:
    assert apart(gang(one)) == []


@pytest.mark.parametrize("broken_c", [999.0, -40.0])
def test_a_sensor_that_is_broken_makes_none_apart(broken_c: float) -> None:
    assert apart(gang((680.0, 1900.0, broken_c, 98.0))) == []


def test_what_bears_another_load_is_compared_in_that_alone() -> None:
    assert apart(gang((150.0, 600.0, 40.0, 20.0))) == [(0, "utilisation_percent")]


def test_a_gang_at_rest_is_not_compared() -> None:
    idle = [(90.0, 300.0, 35.0, 3.0)] * 7
    assert apart(seen((400.0, 1900.0, 80.0, 40.0), *idle)) == []


def test_few_peers_state_nothing() -> None:
    assert apart(gang((400.0, 1900.0, 62.0, 98.0), num_alike=4)) == []
    assert apart(gang((400.0, 1900.0, 62.0, 98.0), num_alike=5)) == [(0, "power_w")]


def test_a_hair_s_breadth_among_equals_is_not_apart() -> None:
    assert apart(seen(*[LIKE] * 7, (LIKE[0] - 20, LIKE[1] - 30, LIKE[2] + 3, LIKE[3] - 3))) == []


def test_gangs_are_compared_each_with_itself() -> None:
    """Another gang draws half the power, and none of it is apart."""
    slow = tuple(value / 2 if index < 2 else value for index, value in enumerate(LIKE))
    both = seen(*[LIKE] * 7, *[slow] * 7, gangs=[5] * 7 + [9] * 7)  # type: ignore[arg-type]  # four values
    assert apart(both) == []


def test_readings_that_are_missing_are_left_out() -> None:
    nan = float("nan")
    assert apart(gang((nan, nan, nan, nan), (400.0, nan, 62.0, 98.0))) == [(1, "power_w")]
    assert apart(seen()) == []


def rounds(count: int, found: Round, memory: Memory | None = None, first: int = 0) -> tuple[Memory, list[Finding]]:
    told: list[Finding] = []
    memory = memory or Memory()
    for number in range(first, first + count):
        at_ms = NOW_MS + number * MINUTE
        memory, findings = judge_round(memory, Round(at_ms, found.gpus, found.nodes, found.gangs, found.values), POLICY)
        told += findings
    return memory, told


def test_it_is_a_finding_once_it_stood_for_eight_of_ten_minutes() -> None:
    low = gang((400.0, 1900.0, 62.0, 98.0))
    memory, told = rounds(7, low)
    assert told == []
    memory, told = rounds(1, low, memory, 7)
    (finding,) = told
    assert (finding.fault_key, finding.severity, finding.gpu_uuid) == ("peers:power_w", Severity.WARNING, "GPU-0")
    assert "power 400 W against a median of 685 W of 8 GPUs" in finding.summary
    assert finding.values["peers"] == 8.0
    _, again = rounds(11, low, memory, 8)
    assert len(again) == 1, "it is stated again after ten minutes, not each minute"


def test_what_comes_and_goes_is_no_finding() -> None:
    low, alike = gang((400.0, 1900.0, 62.0, 98.0)), gang(LIKE)
    memory = Memory()
    for number in range(30):
        memory, told = rounds(1, low if number % 2 else alike, memory, number)
        assert told == []
    memory, _ = rounds(10, alike, memory, 30)
    assert memory == Memory(), "a GPU that is no longer apart is forgotten"


def test_in_another_gang_it_begins_again() -> None:
    low = gang((400.0, 1900.0, 62.0, 98.0))
    memory, _ = rounds(7, low)
    elsewhere = Round(low.at_ms, low.gpus, low.nodes, low.gangs + 1, low.values)
    _, told = rounds(3, elsewhere, memory, 7)
    assert told == []


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-1e6, 1e6) | st.just(float("nan"))), min_size=1, max_size=40))
def test_medians_of_groups_are_those_of_numpy(pairs: list[tuple[int, float]]) -> None:
    groups = np.array([group for group, _ in pairs], dtype=np.int64)
    values = np.array([value for _, value in pairs])
    found = medians(values, groups)
    for group in range(int(groups.max()) + 1):
        own = values[(groups == group) & ~np.isnan(values)]
        assert np.isnan(found[group]) if not len(own) else found[group] == pytest.approx(np.median(own))
