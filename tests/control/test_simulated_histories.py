"""Histories of the simulation, played to the real services over PostgreSQL, end in the same rows."""

from contextlib import suppress
from typing import Final

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from muster.domain.errors import MusterError
from muster.domain.states import ReclaimState
from simulator.world.recording import RecordedWorld, recorded
from tests.control.conftest import SetClock
from tests.control.replayed_history import Replay
from tests.scaled import examples

REQUESTS: Final = {
    "submit": "job.submit", "cancel": "job.cancel", "resize": "job.resize", "stop": "reconcile.attempt",
    "place": "placement.place", "notify": "reclaim.notify", "lapse": "reclaim.lapse", "withdraw": "reclaim.withdraw",
    "grow": "elastic.grow", "let_go": "elastic.let_go", "heartbeat": "host.heartbeat", "claim": "host.claim",
    "report": "host.report", "reconcile": "reconcile.contact",
}  # fmt: skip
"""Request → the unit of work in which the control plane may die."""
COVERING: Final = (406, 342, 769, 30, 273, 1229, 1066, 294, 172, 272)
"""Histories that together hold every request, death and end of a reclaim; the shortest first."""
SEEDS: Final = sorted({*COVERING, *range(examples(1_000, 0))})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_ends_in_the_same_rows(seed: int, units: UnitOfWorkFactory, clock: SetClock) -> None:
    replay = Replay(units, clock, recorded(seed))
    replay.play()
    simulated, stored = replay.simulated(), replay.stored()
    assert stored.jobs == simulated.jobs
    assert stored.attempts == simulated.attempts
    assert stored.allocations == simulated.allocations
    assert stored.assigned == simulated.assigned
    assert stored.reclaims == simulated.reclaims
    assert stored.holds == simulated.holds
    assert stored.wanted == simulated.wanted
    assert replay.num_deaths == sum(call.died_at is not None for call in replay.world.calls)


@pytest.mark.parametrize("word", ["cancel", "resize", "notify"])
def test_a_history_that_lacks_one_word_ends_otherwise(word: str, units: UnitOfWorkFactory, clock: SetClock) -> None:
    """The comparison can fail; what follows may need that word so much that it cannot be played at all."""
    world = next(world for world in map(recorded, COVERING) if has_reported(world, word))
    world.calls[:] = [call for call in world.calls if call.name != word]
    replay = Replay(units, clock, world)
    with suppress(MusterError, KeyError, ValueError):
        replay.play()
        assert replay.stored() != replay.simulated()


def has_reported(world: RecordedWorld, word: str) -> bool:
    return any(call.name == word and call.died_at is None for call in world.calls)


def test_histories_hold_every_kind_of_request_and_deaths_at_each() -> None:
    """Else that they end alike would say nothing of it. ``covering_histories`` finds others when the world changes."""
    worlds = [recorded(seed) for seed in COVERING]
    calls = [call for world in worlds for call in world.calls]
    assert {call.name for call in calls} == REQUESTS.keys()
    dies_in = {*REQUESTS.values()} - {"elastic.let_go"}  # there it dies in ``services/deaths``
    assert {f"{action}.{edge}" for action in dies_in for edge in ("before_commit", "after_commit")} <= {
        call.died_at for call in calls
    }
    ends = {(one.state, one.delivered_ms is not None) for world in worlds for one in world.recorder.changes.given}
    assert {state for state, _ in ends} == set(ReclaimState) - {ReclaimState.NOTIFIED}
    assert any(one.keeps for world in worlds for one in world.recorder.changes.given)
