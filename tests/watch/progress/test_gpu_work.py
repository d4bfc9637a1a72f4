"""Work of GPUs by their readings: a collective that waits keeps them utilised without arithmetic."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from muster.domain.policy.watch import GpuWaitPolicy
from watch.progress.gpu_work import GpuUse, GpuWork, was_waiting

RULES = GpuWaitPolicy()
BUSY, UNKNOWN = 100.0, math.nan
TRAINS = (97.0, 640.0, 38.0)
WAITS = (BUSY, 210.0, 0.0)


def readings(utilisation: float | None, power_w: float | None, tensor: float | None = None) -> dict[str, float]:
    found = {
        "gpu.a.utilisation": utilisation,
        "gpu.a.power_w": power_w,
        "gpu.a.tensor_active_percent": tensor,
    }
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("now", "is_working"),
    [
        (readings(100, 600), True),
        (readings(100, 210), False),
        (readings(94, 210), None),
        (readings(0, 90), None),
        (readings(40, 210), None),
        (readings(100, None), None),
        ({}, None),
    ],
    ids=str,
)
def test_a_spinning_gpu_differs_from_a_computing_one(now: dict[str, float], *, is_working: bool | None) -> None:
    work = GpuWork()
    work.take(readings(100, 640))
    work.take(now)
    assert work.is_working(["a"], now) is is_working


def test_a_program_that_never_drew_power_shows_nothing_by_it() -> None:
    work = GpuWork()
    work.take(readings(3, 70))
    assert work.is_working(["a"], readings(3, 30)) is None
    assert work.is_working([], {}) is None


def test_one_gpu_that_computes_suffices() -> None:
    work = GpuWork()
    now = {"gpu.a.utilisation": 0.0, "gpu.b.utilisation": 80.0, "gpu.b.power_w": 500.0}
    work.take(now)
    assert work.is_working(["a", "b"], now) is True


@pytest.mark.parametrize(
    ("before", "now", "is_working"),
    [
        (readings(97, 640, 38), readings(100, 210, 0), False),
        (readings(97, 640, 38), readings(100, 210, 0.9), False),
        (readings(97, 640, 38), readings(100, 210, 4), True),
        (readings(97, 640, 38), readings(100, 600, 0), True),
        (readings(97, 640, 38), readings(60, 210, 0), None),
        (readings(97, 640, 38), readings(100, 210), False),
        (readings(97, 640, 38), readings(None, 210, 0), None),
        (readings(97, 640, 38), readings(100, None, 0), None),
        (readings(97, 640, 38), readings(None, None, 12), True),
        (readings(97, 640), readings(100, 210, 0), None),
        (readings(97, 640, 0), readings(100, 210, 0), None),
        (readings(97, 640, 4.9), readings(100, 210, 0), None),
        (readings(97, None, 38), readings(100, 210, 0), True),
    ],
    ids=[
        "waits",
        "next to nothing",
        "little work is work",
        "draws power",
        "not utilised",
        "activity unknown now: power decides as before",
        "utilisation unknown",
        "power unknown",
        "activity alone shows work",
        "past activity unknown",
        "never used tensor cores",
        "hardly ever",
        "peak of power is of now",
    ],
)
def test_tensor_cores_show_work_and_accuse_only_a_program_that_used_them(
    before: dict[str, float], now: dict[str, float], *, is_working: bool | None
) -> None:
    work = GpuWork()
    work.take(before)
    work.take(now)
    assert work.is_working(["a"], now) is is_working


def run(*parts: tuple[float, tuple[float, float, float]], every_s: float = 10.0) -> list[GpuUse]:
    """Return samples of a GPU that does each of these for so long."""
    found: list[GpuUse] = []
    begin_s = 0.0
    for lasted_s, what in parts:
        found += [GpuUse(begin_s + n * every_s, *what) for n in range(round(lasted_s / every_s))]
        begin_s += lasted_s
    return found


def has_waited(*parts: tuple[float, tuple[float, float, float]], last_s: float = 1_800.0) -> bool:
    until_s = sum(lasted_s for lasted_s, _ in parts)
    return was_waiting(run(*parts), until_s - last_s, until_s, RULES)


def test_a_gpu_has_waited_if_all_readings_of_the_time_show_it() -> None:
    assert has_waited((3_600, TRAINS), (1_800, WAITS))
    assert has_waited((3_600, TRAINS), (9_000, WAITS))
    assert not has_waited((3_600, TRAINS), (1_700, WAITS)), "not for so long yet"
    assert not has_waited((3_600, TRAINS), (900, WAITS), (10, TRAINS), (890, WAITS)), "one step of work in between"
    assert not has_waited((3_600, TRAINS), (900, WAITS), (10, (UNKNOWN, 640.0, UNKNOWN)), (890, WAITS))
    assert not has_waited((3_600, TRAINS), (900, WAITS), (10, (40.0, UNKNOWN, UNKNOWN)), (890, WAITS))


@pytest.mark.parametrize(
    ("past", "now"),
    [
        ((99.0, 590.0, 0.0), (BUSY, 210.0, 0.0)),
        ((99.0, 590.0, UNKNOWN), (BUSY, 210.0, 0.0)),
        (TRAINS, (BUSY, 210.0, UNKNOWN)),
        (TRAINS, (UNKNOWN, 210.0, 0.0)),
        (TRAINS, (BUSY, UNKNOWN, 0.0)),
        ((97.0, UNKNOWN, 38.0), WAITS),
        (TRAINS, (BUSY, 400.0, 0.0)),
        (TRAINS, (60.0, 210.0, 0.0)),
        (TRAINS, (0.0, 90.0, 0.0)),
        ((97.0, 90.0, 38.0), (BUSY, 30.0, 0.0)),
        (WAITS, WAITS),
    ],
    ids=[
        "fp64 all the time",
        "past activity unknown",
        "activity unknown",
        "utilisation unknown",
        "power unknown",
        "past power unknown",
        "draws power",
        "not utilised",
        "idle",
        "never computed",
        "no past of work",
    ],
)
def test_it_is_not_accused_of_waiting(past: tuple[float, float, float], now: tuple[float, float, float]) -> None:
    assert not has_waited((3_600, past), (3_600, now))


def test_a_time_of_which_nothing_is_known_is_no_wait() -> None:
    trains, waits = run((3_600, TRAINS)), run((3_600, TRAINS), (1_800, WAITS))[360:]
    assert was_waiting([*trains, *waits], 3_600, 5_400, RULES)
    assert not was_waiting(trains, 3_600, 5_400, RULES)
    assert not was_waiting(waits, 3_600, 5_400, RULES), "without a past"
    assert not was_waiting([*trains, *waits[:80]], 3_600, 5_400, RULES), "nothing is known of the end"
    assert not was_waiting([*trains, *waits[100:]], 3_600, 5_400, RULES), "nor of the begin"
    sparse = [*trains, *waits[::60]]
    assert was_waiting(sparse, 3_600, 5_400, RULES)
    unknown = [each._replace(tensor_active_percent=UNKNOWN) for each in waits[30:60]]
    assert was_waiting([*trains, *waits[:30], *unknown, *waits[60:]], 3_600, 5_400, RULES), "a few minutes unknown"


READING = st.floats(0, 100) | st.just(UNKNOWN)


@given(st.lists(st.builds(GpuUse, st.floats(3_600, 5_400), READING, READING.map(lambda w: 7 * w), READING)))
def test_more_readings_of_work_never_make_a_wait(others: list[GpuUse]) -> None:
    """Whatever else is reported, a wait needs that no reading contradicts it."""
    whole = sorted([*run((3_600, TRAINS), (1_800, WAITS)), *others])
    shows_work = [
        each
        for each in others
        if each.utilisation < RULES.utilisation_percent
        or each.power_w >= RULES.power_share * TRAINS[1]
        or each.tensor_active_percent >= RULES.tensor_percent
    ]
    assert was_waiting(whole, 3_600, 5_400, RULES) is not bool(shows_work)


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="tensor_percent must be less than tensor_past_percent"):
        GpuWaitPolicy(tensor_percent=5.0)
