"""The ledger over simulated worlds: nothing counts twice through crashes, late reports and clocks that are set."""

from collections import Counter

import pytest

from ledger.accounts import Account
from muster.domain.ids import AttemptId, NodeId
from simulator.world.truth import ViolationError
from simulator.world.wiring import TRUE_WIRING
from simulator.world.world import World
from tests.scaled import examples

SCHEDULES = examples(20, quick=6)


def test_each_window_is_counted_once_through_deaths_and_late_reports() -> None:
    counts: Counter[str] = Counter()
    accounts: Counter[Account] = Counter()
    for seed in range(3_100, 3_100 + SCHEDULES):
        world = World(seed, TRUE_WIRING)
        world.run()
        counts += world.books.counts
        for entry in (entry for entries in world.books.stored.values() for entry in entries):
            accounts[entry.heading.account] += entry.num_ms
    assert min(counts[name] for name in ("before_commit", "after_commit", "corrections")) > 0
    seen = {account for account, num_ms in accounts.items() if num_ms}
    assert seen >= {
        Account.PRODUCTIVE,
        Account.REPLAYED,
        Account.STARTING,
        Account.IDLE,
        Account.CLEANING,
        Account.NO_CONTACT,
        Account.SUSPECT,
        Account.FREE,
    }
    assert Account.UNEXPLAINED not in seen


def lived_in() -> World:
    world = World(1, TRUE_WIRING)
    world.run()
    world.books.keep()
    return world


def test_a_gpu_that_counts_for_longer_than_an_attempt_had_it_is_found() -> None:
    world = lived_in()
    held = next(iter(world.store.times.assigned.values()))
    assert held.end_ms is not None
    held.end_ms -= 1
    with pytest.raises(ViolationError, match=r"^I23: .* and had it for"):
        world.books.keep()


def test_a_program_that_was_on_a_gpu_for_longer_than_is_counted_is_found() -> None:
    world = lived_in()
    (attempt_id, node_id), present = next(iter(world.store.truth.spans.items()))
    assert world.store.allocated[AttemptId(attempt_id)][NodeId(node_id)]
    present.start_ms -= 10_000_000
    with pytest.raises(ViolationError, match=r"^I23: .* was on .* and counts for"):
        world.books.keep()


def test_entries_that_are_lost_are_found() -> None:
    world = lived_in()
    entries = next(entries for entries in world.books.stored.values() if any(one.heading.attempt_id for one in entries))
    entries.remove(next(one for one in entries if one.heading.attempt_id))
    with pytest.raises(ViolationError, match=r"^I23: "):
        world.books.keep()
