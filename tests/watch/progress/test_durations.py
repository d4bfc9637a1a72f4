"""What a job's past attempts leave to its next one."""

import pytest

from muster.domain.policy.watch import WatchPolicy
from watch.phases import Phase
from watch.progress.durations import NUM_CARRIED, Durations, joined
from watch.progress.tracker import Tracker
from watch.reports import RankReport


def learnt(**seconds: list[float]) -> Durations:
    return Durations.of_document(seconds)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 10, 49, 50])
def test_a_few_durations_give_the_next_attempt_the_same_limit_from_its_first_step_on(count: int) -> None:
    before = learnt(step=[20.0 + (7 * number) % 50 for number in range(count)])
    carried = before.carried()
    assert len(carried["step"]) == min(count, NUM_CARRIED)
    after = Durations.of_document({phase: list(seconds) for phase, seconds in carried.items()})
    limits = [
        Tracker(WatchPolicy(), each).limit_s(RankReport(0, Phase.STEP, step=1)) for each in (before, after, Durations())
    ]
    assert limits[0] == limits[1] > limits[2]


def test_own_durations_of_the_next_attempt_outweigh_what_it_was_given() -> None:
    found = Durations.of_document({"step": list(learnt(step=[60.0] * 50).carried()["step"])})
    for _ in range(50):
        found.add(Phase.STEP, 1.0)
    assert found.longest_s(Phase.STEP, factor=4.0, margin=1.5) == 4.0


def test_of_several_hosts_each_phase_is_the_longest() -> None:
    """Rank 0's host evaluates; the others wait in their step meanwhile."""
    first, other = learnt(step=[2.0, 2.0], eval=[90.0]), learnt(step=[2.0, 3.0], eval=[0.1], save=[4.0])
    assert joined([first, other]) == {"step": (2.0, 3.0), "eval": (90.0,), "save": (4.0,)}
    assert joined([other, first]) == joined([first, other])
    assert joined([]) == {}
