"""The simulator is only as good as what it finds: each planted bug shows at its recorded seed, by the bug alone."""

import pytest

from simulator.world.planted import BUGS, PLANTED_BUGS, SEEDS_TO_FIND, PlantedBug
from simulator.world.world import run_seed

EACH_BUG = pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)


@EACH_BUG
def test_a_planted_bug_is_found_at_its_seed(bug: PlantedBug) -> None:
    history = run_seed(bug.found_at, bug.wiring, bug.name)
    assert history.broken == bug.breaks, f"{bug.name} ({bug.what}): `python -m simulator --bugs` says where it is now"
    assert f"--trace {bug.found_at} --bug {bug.name}" in (history.violation or ""), "its replay is one command"


@pytest.mark.parametrize("seed", sorted({bug.found_at for bug in PLANTED_BUGS}))
def test_the_same_seed_without_the_bug_breaks_nothing(seed: int) -> None:
    assert run_seed(seed).violation is None


def test_there_are_bugs_enough_and_each_is_found_in_time() -> None:
    assert len(BUGS) == len(PLANTED_BUGS) >= 25
    assert max(bug.found_at for bug in PLANTED_BUGS) < SEEDS_TO_FIND
