"""How long the loop waits where nothing wakes it: a second, and longer where cycles that decide nothing cost much."""

import pytest

from muster.domain.ids import JobId
from scheduler.model import Placement, Plan
from workers.control.scheduler_loop import MAX_PAUSE_S, pause_s

PLACED = Plan(placements=(Placement(JobId("job_1"), 1, ()),))
PART = Plan(examined_until=5)
"""The next cycle continues the round over the queue: half a core at most."""


@pytest.mark.parametrize(
    ("decided", "cpu_s", "expected_s"),
    [
        (Plan(), 0.01, 1.0),
        (Plan(), 0.3, 3.0),
        (Plan(), 30.0, MAX_PAUSE_S),
        (PLACED, 0.3, 1.0),
        (PART, 0.3, 1.0),
        (PART, 1.5, 1.5),
    ],
)
def test_cycles_that_decide_nothing_take_a_tenth_of_a_core_at_most(
    decided: Plan, cpu_s: float, expected_s: float
) -> None:
    assert pause_s(decided, cpu_s) == pytest.approx(expected_s)
