"""A suite at one size: what a machine lacks is stated, and only at the smallest size the rest is tried all the same."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from benchmarks import calibration, measuring
from benchmarks.figures import SKIPPED, Basis, Figure, NothingToMeasureError
from benchmarks.sizes import Sizes


def works(size: float) -> Iterator[list[Figure]]:
    yield [Figure("any", size, "", None, basis=Basis.COUNT)]


def lacks_hardware(_: float) -> Iterator[list[Figure]]:
    raise NothingToMeasureError("no GPU")


@pytest.fixture(autouse=True)
def suites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "sample_ms", lambda _passes: calibration.REFERENCE_MS)
    for name, measure in (("works", works), ("lacks", lacks_hardware)):
        module = ModuleType(f"benchmarks.{name}")
        vars(module).update(measure=measure, SIZES=Sizes(full=10.0, smallest=1.0))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(measuring, "SUITES", {"whole": ("works",), "partly": ("works", "lacks"), "not": ("lacks",)})


def test_each_module_is_measured_at_the_size_that_was_requested() -> None:
    for size, value in ((measuring.FULL, 10.0), (measuring.SMALLEST, 1.0)):
        assert [figure.value for figure in measuring.measured("whole", size, measuring.Pace())] == [value]


def test_a_suite_with_a_limit_states_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "LIMITS_MIN", {"whole": 20.0})
    now_s = iter((100.0, 1420.0))
    monkeypatch.setattr("benchmarks.measuring.time.monotonic", lambda: next(now_s))
    figure = measuring.measured("whole", measuring.FULL, measuring.Pace())[-1]
    assert (figure.name, figure.value, figure.unit, figure.bar) == ("whole: the whole suite", 22.0, "min", 20.0)
    assert not figure.holds


def test_at_the_smallest_size_a_part_without_hardware_is_named_and_the_rest_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert len(measuring.measured("partly", measuring.SMALLEST, measuring.Pace())) == 1
    assert capsys.readouterr().err == f"{SKIPPED} by lacks: no GPU\n"


@pytest.mark.parametrize(("name", "size"), [("partly", measuring.FULL), ("not", measuring.SMALLEST)])
def test_a_result_is_whole_or_it_is_none(name: str, size: str) -> None:
    with pytest.raises(NothingToMeasureError):
        measuring.measured(name, size, measuring.Pace())
