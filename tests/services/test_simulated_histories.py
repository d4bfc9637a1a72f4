"""Histories of the simulation, played to the real services over PostgreSQL, end in the same rows."""

import os

import pytest

from muster.services.unit_of_work import UnitOfWorkFactory
from simulator.recording import recorded
from tests.services.conftest import SetClock
from tests.services.replayed_history import Replay

NUM_HISTORIES = int(os.environ.get("MUSTER_HISTORIES", "20"))


@pytest.mark.parametrize("seed", range(NUM_HISTORIES))
def test_a_history_ends_in_the_same_rows(seed: int, units: UnitOfWorkFactory, clock: SetClock) -> None:
    replay = Replay(units, clock, recorded(seed))
    replay.play()
    simulated, stored = replay.simulated(), replay.stored()
    assert stored.jobs == simulated.jobs
    assert stored.attempts == simulated.attempts
    assert stored.allocations == simulated.allocations
    assert stored.held == simulated.held


def test_a_history_that_lacks_one_word_ends_otherwise(units: UnitOfWorkFactory, clock: SetClock) -> None:
    """The comparison can fail."""
    world = recorded(1)
    world.calls[:] = [call for call in world.calls if call.name != "cancel"]
    replay = Replay(units, clock, world)
    replay.play()
    assert replay.stored() != replay.simulated()
