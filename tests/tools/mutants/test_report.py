"""The figures compare with the results before: a mutant that is missed now and was caught is lost."""

import pytest

from tools.mutants.mutant import Mutant
from tools.mutants.report import figures, lost
from tools.mutants.trial import TrialResult

MUTANTS = [Mutant("health/it.py", f"f{at}", "a()", 0, "deletion", "pass") for at in range(4)]


def results(*outcomes: str) -> dict[str, TrialResult]:
    return {mutant.key: TrialResult(outcome) for mutant, outcome in zip(MUTANTS, outcomes, strict=True)}


BEFORE = results("killed", "timeout", "survived", "killed")


@pytest.mark.parametrize(
    ("now", "num_lost"),
    [
        (("killed", "killed", "survived", "timeout"), 0),
        (("survived", "killed", "killed", "killed"), 1),
        (("broken", "survived", "survived", "killed"), 2),
        (("not placed", "killed", "killed", "killed"), 0),
    ],
)
def test_lost_is_what_was_caught_and_is_not(now: tuple[str, ...], num_lost: int) -> None:
    assert len(lost(MUTANTS, BEFORE, results(*now))) == num_lost
    share, missed, _ = figures(MUTANTS, BEFORE, results(*now))
    assert missed.value == num_lost
    assert missed.holds == (num_lost == 0)
    assert share.bar == 0.75


def test_one_without_a_place_is_a_figure_of_its_own() -> None:
    share, _, unplaced = figures(MUTANTS, BEFORE, results("not placed", "killed", "survived", "killed"))
    assert share.value == pytest.approx(2 / 3)
    assert (unplaced.value, unplaced.holds) == (1, False)


def test_without_results_before_nothing_is_guaranteed() -> None:
    share, missed, _ = figures(MUTANTS, {}, BEFORE)
    assert (share.bar, missed.bar) == (None, None)
