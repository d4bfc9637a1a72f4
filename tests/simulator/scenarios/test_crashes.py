"""The control plane of a scenario dies at what is armed, each crash once."""

from typing import Any, Final

import pytest

from simulator.scenarios.crashing import Crash, Crashes, DiedError
from simulator.scenarios.document import Scenario
from simulator.scenarios.world import play

AFTER: Final = "placement.place.after_commit"
BEFORE: Final = "placement.place.before_commit"


def died_at_ms(crashes: Crashes, point: Any, now_ms: int) -> int | None:
    try:
        crashes.reach(point, now_ms)
    except DiedError:
        return crashes.up_ms
    return None


def test_crashes_at_one_point_are_reached_in_the_order_in_which_they_came_each_once() -> None:
    crashes = Crashes()
    crashes.arm(Crash(at=AFTER, down_s=10))
    crashes.arm(Crash(at=BEFORE, down_s=1))
    crashes.arm(Crash(at=AFTER, down_s=20))
    found = [died_at_ms(crashes, point, 0) for point in (AFTER, AFTER, AFTER, BEFORE, BEFORE)]
    assert found == [10_000, 20_000, None, 1_000, None]


@pytest.mark.parametrize("seconds", [(1, 1), (1, 2)])
def test_a_crash_does_not_take_the_place_of_one_that_was_not_reached(seconds: tuple[int, int]) -> None:
    """Two jobs come: each is placed as the control plane dies, for 50 s and then for 70 s."""
    crashes = [
        {"at_s": at, "crash": {"at": BEFORE, "down_s": down}} for at, down in zip(seconds, (50, 70), strict=True)
    ]
    document = {
        "topology": {"nodes": [{"names": "a[0-1]"}]},
        "requests": [*crashes, {"at_s": 10, "submit": {"name": "one"}}],
        "until_s": 300,
    }
    (placed,) = play(Scenario.model_validate(document))
    assert (placed["kind"], placed["at_s"]) == ("placed", 130.0), "10 s, 50 s away, and 70 s away at the next attempt"
