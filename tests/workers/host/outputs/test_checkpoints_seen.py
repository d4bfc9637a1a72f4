"""Each committed checkpoint is passed on once, also of batches that are sent again."""

import json
from pathlib import Path
from typing import Any

import pytest

from muster.wire.training import TrainLine
from workers.host.outputs.checkpoints_seen import SEEN, Seen, note_checkpoints, unseen


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    (tmp_path / "order.json").write_text(json.dumps({"outputs": {"patterns": ["*.pt"]}}))
    return tmp_path


def line(step: Any, status: str = "committed", kind: str = "checkpoint") -> TrainLine:
    return TrainLine(at_ms=1, rank=0, message={"type": kind, "step": step, "status": status})


def test_the_last_of_several_is_copied(attempt: Path) -> None:
    lines = [line(1), line(2, "writing"), line(3), line(3, "verified"), line(4, kind="step")]
    note_checkpoints(attempt, lines, 100)
    assert list(unseen(attempt)) == [Seen(1, has_next=True), Seen(3, has_next=False)]
    assert list(unseen(attempt)) == []
    note_checkpoints(attempt, lines, 100)
    assert list(unseen(attempt)) == [], "the same batch again"
    note_checkpoints(attempt, [line(1)], 200)
    assert list(unseen(attempt)) == [Seen(1, has_next=False)], "the training has rolled back"


def test_what_is_no_step_is_passed_over(attempt: Path) -> None:
    steps: list[Any] = [-1, True, "2", None, 1 << 60, 1.5, []]
    note_checkpoints(attempt, [line(step) for step in steps], 100)
    assert list(unseen(attempt)) == []


def test_a_line_that_was_cut_costs_no_other(attempt: Path) -> None:
    (attempt / SEEN).write_text('{"step": 1, "off\n')
    note_checkpoints(attempt, [line(2)], 100)
    assert list(unseen(attempt)) == [Seen(2, has_next=False)]


@pytest.mark.parametrize("order", [{}, {"outputs": None}, {"outputs": {"patterns": []}}])
def test_a_job_without_patterns_is_passed_over(attempt: Path, order: dict[str, Any]) -> None:
    (attempt / "order.json").write_text(json.dumps(order))
    note_checkpoints(attempt, [line(1)], 100)
    assert list(unseen(attempt)) == []
