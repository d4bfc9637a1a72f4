"""Histories without planted bugs break nothing, repeat exactly, and really meet the faults they are meant to meet."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from simulator.world.failpoints import FAILPOINTS
from simulator.world.kernel import INSPECTION_EVENTS
from simulator.world.settings import FAULT_KINDS, Settings, draw_settings
from simulator.world.wiring import TRUE_WIRING
from simulator.world.world import History, World, run_seed
from tests.scaled import examples

SEEDS = examples(500)
CHUNK = 50
DEATHS = examples(3, quick=1)
STRUCK = 5
"""Each fault strikes at least so many of the seeds: a seed draws about a quarter of the kinds (swarm testing)."""


def histories(first: int) -> list[History]:
    return [run_seed(seed) for seed in range(first, first + CHUNK)]


@pytest.mark.parametrize("seed", [120, 521])
def test_a_postponed_firm_start_has_a_reason_that_is_true(seed: int) -> None:
    """A job that waits for hosts in place of lost ones keeps its others; an elastic victim keeps some of its own."""
    assert run_seed(seed).violation is None


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_invariant_breaks(first: int) -> None:
    struck_by: Counter[str] = Counter()
    for history in histories(first):
        assert history.violation is None, history.violation
        struck_by.update(kind for kind, times in dict(history.fault_counts).items() if times)
        assert history.num_checks > history.num_events // INSPECTION_EVENTS
    assert set(struck_by) == set(FAULT_KINDS)
    assert min(struck_by.values()) >= STRUCK, "a fault that never strikes proves nothing"


@pytest.mark.parametrize("name", FAILPOINTS)
def test_the_control_plane_may_die_at_each_of_its_failpoints(name: str) -> None:
    """In every third pass of that one, among faults of all kinds, in worlds of their own."""

    class DyingThere(World):
        is_planned = True if name.startswith("reclaim.") else None

        def draw_settings(self, rng: Random) -> Settings:
            settings = draw_settings(rng)
            if name.startswith(("reclaim.withdraw", "reclaim.lapse")):
                return beneficiaries_that_leave(settings, name)
            weights = dict.fromkeys(FAULT_KINDS, 1.0)
            return replace(settings, crash_rates={name: 0.3}, fault_weights=weights)

    crashes = 0
    for seed in range(60):
        history = run_seed(seed, world_type=DyingThere)
        assert history.violation is None, history.violation
        crashes += dict(history.crash_counts).get(name, 0)
        if crashes >= DEATHS and seed >= DEATHS:
            return
    pytest.fail(f"it died there {crashes} times")


def beneficiaries_that_leave(settings: Settings, name: str) -> Settings:
    """Jobs are cancelled that something is reclaimed for, while its victims are cut off and know of nothing."""
    beat_ms = settings.timers.heartbeat_ms
    return replace(
        settings,
        crash_rates={name: 0.5},
        fault_weights={**dict.fromkeys(FAULT_KINDS, 0.0), "cancel": 1.0, "cut_both_ways": 1.0},
        has_broker=False,
        fault_gap_ms=4 * beat_ms,
        num_jobs=12,
        horizon_ms=250 * beat_ms,
    )


def test_the_planner_decides_all_that_it_may() -> None:
    """And the same seeds without it are other histories."""

    class Planned(World):
        is_planned = True
        has_node_faults = False  # fewer hosts are idle then, and growth is rare as it is

    decided: Counter[str] = Counter()
    for seed in range(CHUNK):
        history = run_seed(seed, world_type=Planned)
        assert history.violation is None, history.violation
        decided.update(dict(history.decision_counts))
    for kind in ("placement", "swap", "hold", "lapse", "reclaim", "withdrawal", "growth", "clearing"):
        assert decided[kind] >= 3, f"{kind} was decided {decided[kind]} times: {decided}"


def test_each_world_has_faults_of_its_own() -> None:
    """Some kinds are off in a world, and each kind is off in some."""
    weights = [World(seed, TRUE_WIRING).settings.fault_weights for seed in range(CHUNK)]
    assert all(any(each.values()) for each in weights)
    for kind in FAULT_KINDS:
        assert 0 < sum(each[kind] > 0 for each in weights) < CHUNK


def test_holds_of_nodes_are_within_the_caps_and_beyond_them_for_correctness_alone() -> None:
    """Each hold is checked as it begins (``standings.Standings``), and the account at each inspection (I29)."""
    begun, proposed, ended = 0, 0, 0
    for seed in range(CHUNK):
        world = World(seed, TRUE_WIRING)
        world.run()
        holds = world.judge.node_holds
        begun, proposed, ended = begun + holds.num_begun, proposed + holds.num_proposed, ended + holds.num_ended
        assert not world.store.nodes_on_hold
    assert begun == ended
    assert min(begun, proposed) >= STRUCK, "a hold that never begins, or is never held back, proves nothing"


def test_a_seed_is_one_history() -> None:
    assert run_seed(7) == run_seed(7)
    assert run_seed(7) != run_seed(8)
