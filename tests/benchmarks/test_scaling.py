"""What a bar is compared with: the figure as the reference machine would have it, next to what was measured."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import calibration
from benchmarks.figures import Basis, Figure, show
from benchmarks.measuring import Pace


def test_cpu_time_is_divided_by_the_slowness_and_a_rate_is_multiplied() -> None:
    slow = 1.7
    time = Figure("decision", 1.7, "ms", 1.0, basis=Basis.CPU).scaled(slow)
    rate = Figure("judged", 1_000.0, "/s", 1_700.0, "higher", basis=Basis.CPU).scaled(slow)
    assert (time.value, time.raw, time.holds) == (1.0, 1.7, True)
    assert (rate.value, rate.raw, rate.holds) == (1_700.0, 1_000.0, True)


@pytest.mark.parametrize("basis", [Basis.RATIO, Basis.COUNT, Basis.CLOCK])
def test_a_ratio_a_count_and_what_a_user_waits_for_stay_as_they_are(basis: Basis) -> None:
    figure = Figure("any", 3.0, "", 2.0, basis=basis)
    assert figure.scaled(1.7) is figure
    assert figure.row()["raw"] == 3.0


def test_of_a_durable_commit_the_loop_scales_what_is_computed_and_nothing_else() -> None:
    """What it waits for the disk the benchmark has scaled by its bare rows."""
    figure = Figure("commit", 5.0, "ms", 4.0, basis=Basis.COMMITS, raw=9.0, computed=4.0).scaled(2.0)
    assert (figure.value, figure.raw, figure.holds) == (3.0, 9.0, True)


def test_each_group_is_scaled_by_the_samples_right_before_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reference_ms = calibration.REFERENCE_MS
    samples = iter([reference_ms, 3 * reference_ms, reference_ms])
    monkeypatch.setattr(calibration, "sample_ms", lambda _passes: next(samples))

    def groups() -> Iterator[list[Figure]]:
        for value in (4.0, 6.0):
            yield [Figure("any", value, "ms", None, basis=Basis.CPU)]

    pace = Pace()
    assert [figure.value for figure in pace.scaled(groups())] == [2.0, 3.0]
    assert len(pace.samples_ms) == 3


def test_the_table_states_of_each_bar_whether_it_is_scaled(capsys: pytest.CaptureFixture[str]) -> None:
    scaled = Figure("decision", 1.7, "ms", 1.0, basis=Basis.CPU).scaled(1.7)
    show([scaled, Figure("over the bare rows", 3.0, "×", 3.3, basis=Basis.RATIO)])
    head, decision, ratio = capsys.readouterr().out.splitlines()
    assert head.split() == ["figure", "value", "bar", "holds", "basis", "measured", "peers"]
    assert decision.split() == ["decision", "1.000", "ms", "1.0", "yes", "cpu", "1.700"]
    assert ratio.split() == ["over", "the", "bare", "rows", "3.000", "×", "3.3", "yes", "ratio"]


def test_the_loop_does_the_same_work_in_each_pass_and_none_of_ours() -> None:
    parts = (calibration._objects, calibration._texts, calibration._arrays, calibration._scattered)
    assert [part() for part in parts] == [part() for part in parts]
    tree = ast.parse(Path(calibration.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} - sys.stdlib_module_names == {"numpy"}


def test_a_sample_is_of_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "PASSES", 1)
    assert 0 < calibration.sample_ms() < 60_000
    assert calibration.slowness_of(calibration.REFERENCE_MS, 3 * calibration.REFERENCE_MS) == 2.0
