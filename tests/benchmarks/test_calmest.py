"""Of figures that were measured several times the least disturbed are kept."""

from benchmarks.figures import Figure, calmest


def test_the_best_of_each_figure_is_kept_and_the_middle_of_a_ratio() -> None:
    runs = [
        [Figure("ms", ms, "ms", 1.0), Figure("rate", rate, "/s", 1.0, "higher"), Figure("ratio", ratio, "×", 1.0)]
        for ms, rate, ratio in ((3.0, 5.0, 0.1), (2.0, 7.0, 4.0), (4.0, 6.0, 2.0))
    ]
    assert [figure.value for figure in calmest(runs)] == [2.0, 7.0, 2.0]
    assert calmest(runs[:1]) == runs[0]
