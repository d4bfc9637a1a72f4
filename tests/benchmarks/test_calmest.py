"""Of figures that were measured several times the least disturbed are kept."""

from typing import Literal

from benchmarks.figures import Basis, Figure, calmest


def figure(value: float, unit: str, better: Literal["lower", "higher"] = "lower") -> Figure:
    return Figure(f"in {unit}", value, unit, 1.0, better, basis=Basis.CPU)


def test_the_best_of_each_figure_is_kept_and_the_middle_of_a_ratio() -> None:
    runs = [
        [figure(ms, "ms"), figure(rate, "/s", "higher"), figure(ratio, "×")]
        for ms, rate, ratio in ((3.0, 5.0, 0.1), (2.0, 7.0, 4.0), (4.0, 6.0, 2.0))
    ]
    assert [figure.value for figure in calmest(runs)] == [2.0, 7.0, 2.0]
    assert calmest(runs[:1]) == runs[0]
