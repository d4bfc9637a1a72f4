"""What a host's watch learns of the phases: reported for the next attempt, and known from its first step on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.domain.policy.watch import KnownLimits, WatchPolicy
from muster.wire.training import AnyRankMessage
from muster.wire.training import Learnt as WireLearnt
from tests.waiting import wait_until
from tests.workers.host.supervisor.attempt_case import Attempt
from watch.phases import Phase
from watch.progress.durations import Durations
from watch.progress.tracker import Tracker
from watch.reports import RankReport
from workers.host.watch.host_watch import DURATIONS, HostWatch, durations_of
from workers.host.watch.learnt import Learnt

STEPS = """
import os, time, types
from muster.train.watch import sensor
from muster.train.watch.activity import ACTIVITY
sensor.REPORT_EVERY_S = 0.02
sensor.Sensor(os.environ["MUSTER_WATCH_SOCKET"], types.SimpleNamespace(rank=0, world_size=1), ACTIVITY)
ACTIVITY.begin_steps(0)
for step in range(1, 10**6):
    time.sleep(0.3)
    ACTIVITY.end_step(step)
"""


def limit_s(durations: Durations) -> float:
    policy = WatchPolicy(factor=100.0, known=KnownLimits(step_s=1.0, first_step_s=1.0))
    return Tracker(policy, durations).limit_s(RankReport(0, Phase.STEP, step=1))


def test_the_limit_of_the_next_attempt_is_the_learnt_one_from_its_first_step_on(
    make_attempt: Callable[[], Attempt], tmp_path: Path
) -> None:
    first = make_attempt()
    first.start(STEPS, watch=WatchPolicy().model_dump(mode="json"))
    watch = HostWatch(tmp_path)

    def learnt() -> list[dict[str, Any]]:
        watch.turn()
        path = first.folder / "train.jsonl"
        found = [json.loads(line)["message"] for line in path.read_text().splitlines()] if path.exists() else []
        return [each for each in found if each.get("type") == "learnt" and len(each["durations"].get("step", ())) >= 3]

    wait_until(lambda: bool(learnt()))
    message = msgspec.convert(learnt()[0], AnyRankMessage)
    assert isinstance(message, WireLearnt)
    second = make_attempt()
    second.order(command=["true"], durations=dict(message.durations))
    carried = durations_of(second.folder)
    own = Durations.of_document({phase: list(seconds) for phase, seconds in message.durations.items()})
    assert limit_s(carried) == limit_s(own) > limit_s(Durations())
    (second.folder / DURATIONS).write_text('{"step": [77.0, 77.0, 77.0]}')
    assert limit_s(durations_of(second.folder)) == 7_700.0, "its own past is newer than its order"


@pytest.mark.parametrize("stated", [None, 7, {"step": "long"}, {"step": [None, -1, float("inf")]}, {"nap": [1.0]}])
def test_an_order_of_an_older_server_or_with_odd_durations_leaves_the_policys_limits(
    tmp_path: Path, stated: Any
) -> None:
    (tmp_path / "order.json").write_text(json.dumps({} if stated is None else {"durations": stated}))
    assert durations_of(tmp_path).document() == {}


def test_a_phase_is_reported_once_it_is_known_and_others_now_and_then() -> None:
    durations = Durations()
    learnt = Learnt(durations, WatchPolicy())
    durations.add(Phase.FIRST_STEP, 40.0)
    assert learnt.news(is_due=False) is None
    assert learnt.news(is_due=True) == {"first_step": (40.0,)}
    assert learnt.news(is_due=True) is None, "nothing is new"
    durations.add(Phase.STEP, 2.0)
    assert learnt.news(is_due=True) == {"first_step": (40.0,), "step": (2.0,)}
    for _ in range(2):
        assert learnt.news(is_due=False) is None
        durations.add(Phase.STEP, 2.0)
    assert learnt.news(is_due=False) == {"first_step": (40.0,), "step": (2.0, 2.0, 2.0)}
    durations.add(Phase.STEP, 2.1)
    assert learnt.news(is_due=True) is None, "the limit is nearly the same"
    durations.add(Phase.STEP, 9.0)
    assert learnt.news(is_due=False) is None
    assert learnt.news(is_due=True) == {"first_step": (40.0,), "step": (2.0, 2.0, 2.0, 2.1, 9.0)}


def test_what_an_attempt_was_given_is_not_reported_again() -> None:
    given = Durations.of_document({"step": [2.0, 2.0, 2.0]})
    assert Learnt(given, WatchPolicy()).news(is_due=True) is None
