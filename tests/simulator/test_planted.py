"""The simulator is only as good as what it finds: every planted bug must show within its seeds."""

import pytest

from simulator.planted import PLANTED_BUGS, PlantedBug, first_seed_that_finds


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug) -> None:
    assert first_seed_that_finds(bug) is not None, f"{bug.name} ({bug.what}) is no longer found in {bug.within} seeds"
