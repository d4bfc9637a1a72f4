"""Answers of sensors that come after the wait for them, as on a busy host: kept with the attempt, and sent again."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.cli.job.hang_folder import read_bundle
from muster.domain.policy.watch import WatchPolicy
from watch.phases import Phase
from watch.progress.tracker import Overdue, Tracker
from watch.reports import Collective, Frame, RankReport, StackSource
from workers.host.supervisor import files
from workers.host.watch import stacks
from workers.host.watch.part import Part
from workers.host.watch.part_watch import LATE_FOR_S, PartWatch, Stalled
from workers.host.watch.rank_reader import RankReader
from workers.host.watch.stacks import with_late_answers

FRAMES = [{"function": "stands_still", "file": "/srv/train.py", "line": 7}]
STACK = (Frame("stands_still", "/srv/train.py", 7),)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PartWatch:
    """A watch over two ranks in a hang, whose sensors do not answer in time."""
    for name in (files.SENSORS, files.LOGS):
        (tmp_path / name).mkdir()
    reports = RankReport(0, Phase.STEP, 3), RankReport(1, Phase.STEP, 3)
    still_s = iter(range(30, 30 + 1_000))
    monkeypatch.setattr(stacks, "SENSOR_WAIT_S", 0.1)
    monkeypatch.setattr(RankReader, "read", lambda *_: reports)
    monkeypatch.setattr(RankReader, "pid_of", lambda *_: None)
    monkeypatch.setattr(Tracker, "take", lambda *_: Overdue(Phase.STEP, 3, 30.0, float(next(still_s)), (1,)))
    return PartWatch(Part(tmp_path, "node_test", (0, 1)), WatchPolicy())


def number_of(part: Part) -> int:
    number: int = json.loads((part.folder / files.COLLECT).read_text())["id"]
    return number


def answer(part: Part, rank: int, **stack: Any) -> None:
    """Write an answer as the supervisor does."""
    document = {"at_ms": 1, "stack": {"id": number_of(part), "frames": FRAMES, "collectives": [], **stack}}
    (part.folder / files.SENSORS / f"stack-{rank}.json").write_text(json.dumps(document))


def kept(part: Part) -> tuple[RankReport, ...]:
    (report,) = read_bundle(part.folder / "watch").reports
    return report.ranks


def first_of(watched: PartWatch) -> Stalled:
    found = watched.turn()
    assert isinstance(found, Stalled)
    assert [rank.stack for rank in found.report.ranks] == [(), ()]
    return found


def test_a_late_answer_is_kept_with_the_attempt_and_in_the_next_message(watched: PartWatch) -> None:
    first_of(watched)
    answer(watched.part, 1)
    assert watched.turn() is None
    assert [(rank.stack, rank.stack_source) for rank in kept(watched.part)] == [
        ((), StackSource.NONE),
        (STACK, StackSource.SENSOR_THREAD),
    ]
    found = next(filter(None, (watched.turn() for _ in range(100))))
    assert isinstance(found, Stalled)
    assert [rank.stack for rank in found.report.ranks] == [(), STACK]


@pytest.mark.parametrize(
    "stack", [{"id": 7}, {"frames": "none"}, {"frames": [{"line": "x"}]}], ids=["of an earlier request", "none", "text"]
)
def test_an_answer_that_is_none_changes_nothing(watched: PartWatch, stack: dict[str, Any]) -> None:
    first_of(watched)
    answer(watched.part, 1, **stack)
    assert watched.turn() is None
    assert [rank.stack for rank in kept(watched.part)] == [(), ()]


def test_an_answer_that_came_much_later_may_be_of_other_work(
    watched: PartWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_of(watched)
    later_s = time.monotonic() + LATE_FOR_S + 1
    monkeypatch.setattr("time.monotonic", lambda: later_s)
    answer(watched.part, 1)
    assert watched.turn() is None
    assert [rank.stack for rank in kept(watched.part)] == [(), ()]


def test_collectives_of_a_dump_stay_and_missing_ones_are_filled(watched: PartWatch) -> None:
    first_of(watched)
    own = [{"group": "0", "sequence": 4, "operation": "all_reduce", "source": "muster"}]
    answer(watched.part, 0, collectives=own)
    answer(watched.part, 1, collectives=own)
    dumped = (Collective("0", 9, "all_reduce"),)
    reports = RankReport(0, Phase.STEP, collectives=dumped), RankReport(1, Phase.STEP)
    first, second = with_late_answers(watched.part, reports)
    assert (first.collectives, first.stack) == (dumped, STACK)
    assert [each.sequence for each in second.collectives] == [4]
    spied = replace(reports[1], stack=(Frame("poll", "kernel"),), stack_source=StackSource.KERNEL)
    assert with_late_answers(watched.part, (spied,))[0].stack == STACK
    from_sensor = replace(spied, stack_source=StackSource.SENSOR_THREAD)
    assert with_late_answers(watched.part, (from_sensor,)) == (from_sensor,)
