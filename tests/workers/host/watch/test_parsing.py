"""What tools and programs have written about stacks, in any form, and messages that are too long."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from watch.phases import Phase
from watch.progress.tracker import Overdue
from watch.reports import Collective, Frame, HostReport, RankReport, StackSource
from workers.host.watch.host_watch import MOST_BYTES, bounded, message_of
from workers.host.watch.part import Part
from workers.host.watch.part_watch import Stalled
from workers.host.watch.stacks import Means, parse_faulthandler, parse_py_spy

LONG = RankReport(
    0,
    Phase.STEP,
    stack=tuple(Frame(f"f{number}" * 20, "/a/long/path/of/a/file.py" * 4, number) for number in range(64)),
    collectives=tuple(Collective("0", number, "all_reduce", ranks=tuple(range(64))) for number in range(128)),
    lines=("x" * 500,) * 20,
)


def test_faulthandler_and_py_spy_give_frames_and_nonsense_gives_none() -> None:
    text = (
        'Stack (most recent call first):\n  File "/a b.py", line 7 in inner\n  File "c.py", line 9 in <module>\n...\n'
    )
    assert parse_faulthandler(text) == (Frame("inner", "/a b.py", 7), Frame("<module>", "c.py", 9))
    frames = [{"name": "inner", "filename": "a.py", "line": 3}]
    threads = [{"thread_name": "other", "frames": []}, {"thread_name": "MainThread", "frames": frames}]
    assert parse_py_spy(json.dumps(threads)) == (Frame("inner", "a.py", 3),)
    for broken in ("", "{}", "[]", '[{"frames": [{"name": 1}]}]', "[1]", '[{"thread_name": "MainThread"}]'):
        assert parse_py_spy(broken) == ()


def test_py_spy_is_used_where_no_sensor_answers(tmp_path: Path) -> None:
    spy = tmp_path / "py-spy"
    frames = [{"name": "inner", "filename": "a.py", "line": 3}]
    spy.write_text(f"#!/bin/sh\necho '{json.dumps([{'thread_name': 'MainThread', 'frames': frames}])}'\n")
    spy.chmod(0o755)
    means = Means(Part(tmp_path, "node", (0,)), lambda _rank: 1, str(spy))
    (found,) = means.take((RankReport(0, Phase.IMPORT, has_sensor=False),))
    assert (found.stack, found.stack_source) == ((Frame("inner", "a.py", 3),), StackSource.PY_SPY)


@pytest.mark.parametrize("frames", ["text", [{"function": 3}], [{"function": "f", "line": -1}], [[]]], ids=str)
def test_a_stack_that_is_none_is_left_out(frames: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.host.watch.stacks.time.monotonic_ns", lambda: 5)
    (tmp_path / "sensors").mkdir()
    (tmp_path / "sensors" / "stack-0.json").write_text(json.dumps({"stack": {"id": 5, "frames": frames}}))
    means = Means(Part(tmp_path, "node", (0,)), lambda _rank: None)
    (found,) = means.take((RankReport(0, Phase.STEP),))
    assert (found.stack, found.stack_source) == ((), StackSource.NONE)


def test_a_link_in_place_of_a_stack_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('  File "secret", line 7 in secret\n')
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "stack-0.txt").symlink_to(secret)
    means = Means(Part(tmp_path, "node", (0,)), lambda _rank: 1)
    (found,) = means.take((RankReport(0, Phase.STEP),))
    assert all(frame.file == "kernel" for frame in found.stack)


@pytest.mark.parametrize("num_ranks", [1, 8, 72])
def test_a_message_is_never_too_long_for_the_relay(num_ranks: int) -> None:
    report = HostReport("node", 1, tuple(replace(LONG, rank=rank) for rank in range(num_ranks)))
    message = message_of(Stalled(Overdue(Phase.STEP, 3, 30.0, 31.0, (0,)), report), "node")
    assert message["report"] is not None
    assert len(json.dumps(message)) <= MOST_BYTES + 1_000
    assert [rank["rank"] for rank in message["report"]["ranks"]] == list(range(num_ranks))


def test_one_that_cannot_be_cut_loses_its_report_alone() -> None:
    report = HostReport("node", 1, (LONG,), lines=("x" * 4_000,) * 100)
    assert bounded(report) is None
