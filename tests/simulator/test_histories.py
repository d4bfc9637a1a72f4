"""Histories without planted bugs break nothing, repeat exactly, and really meet the faults they are meant to meet."""

from collections import Counter

import pytest

from simulator.world import History, run_seed

SEEDS = 500
CHUNK = 50
KINDS = {
    "cancel",
    "cut_both_ways",
    "cut_one_way",
    "drop_server",
    "flip_admission",
    "kill_launcher",
    "reboot",
    "resize",
    "stop_attempt",
}


def histories(first: int) -> list[History]:
    return [run_seed(seed) for seed in range(first, first + CHUNK)]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_invariant_breaks(first: int) -> None:
    faults: Counter[str] = Counter()
    for history in histories(first):
        assert history.violation is None, history.violation
        faults.update(dict(history.fault_counts))
    assert set(faults) == KINDS
    assert min(faults.values()) > CHUNK, "a fault that never strikes proves nothing"


def test_a_seed_is_one_history() -> None:
    assert run_seed(7) == run_seed(7)
    assert run_seed(7) != run_seed(8)
