"""Ranks that choose by themselves when to save choose the same steps, and say from which figures."""

import json
import time
from pathlib import Path

import pytest

from muster.train.checkpoint.interval import daly_s
from tests.train.marks import TRAINS
from tests.train.train_case import Listening, Training

pytestmark = TRAINS
OFTEN = json.dumps({"failures_per_gpu_hour": 3600.0 / 200, "num_gpus": 2, "min_s": 0.05, "max_s": 60.0})
"""A failure every 100 s: a stall of a millisecond is then worth a checkpoint about twice a second."""


def test_they_save_the_same_steps_by_the_measured_stall_and_go_on_there(training: Training, tmp_path: Path) -> None:
    with Listening(tmp_path / "s") as supervisor:
        attempt = training.start(
            *("--every", "auto", "--steps", "1000000"),
            num_ranks=2,
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
            MUSTER_CHECKPOINT_INTERVAL=OFTEN,
        )
        supervisor.wait_for("checkpoint_interval")
        supervisor.wait_for("checkpoint", status="verified")
        supervisor.report({"type": "stop", "reason": "enough", "deadline_unix_ms": (time.time_ns() // 10**6) + 10**6})
        assert attempt.ended() == [75, 75]
    first = supervisor.received("checkpoint_interval")[0]
    assert (first["mtbf_s"], first["num_gpus"], first["failures_per_gpu_hour"]) == (100.0, 2, 18.0)
    cheapest_s = daly_s(first["stall_s"], 100.0) + first["stall_s"]
    expected = {"none": cheapest_s, "min": 0.05, "max": 60.0, "save": first["save_s"]}
    assert first["interval_s"] == pytest.approx(expected[first["bound"]], abs=1e-3)
    assert first["step_s"] > 0
    assert "muster.train: a checkpoint every " in attempt.ranks[0].errors
    assert "a checkpoint every" not in attempt.ranks[1].errors, "the first reports for all"
    last = supervisor.received("checkpoint", status="committed")[-1]["step"]
    again = training.run("--every", "auto", "--steps", str(last + 3), num_ranks=2)
    assert [list(steps) for steps in again.steps] == [[last + 1, last + 2, last + 3]] * 2


def test_a_script_without_muster_around_it_keeps_nothing_and_goes_on(training: Training) -> None:
    assert len(training.run("--every", "auto", MUSTER_CHECKPOINT_DIR="").steps[0]) == 12
