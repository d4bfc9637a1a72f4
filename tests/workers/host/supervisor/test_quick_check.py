"""The quick check in a process of its own: real torch on the CPU, and interpreters that play what goes wrong."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from muster.bench import exact, quick_check
from tests.workers.host.supervisor.attempt_case import Attempt, until
from workers.host.supervisor import files
from workers.host.supervisor.order_parts import Preparation
from workers.host.supervisor.preparation import UnreadyError
from workers.host.supervisor.quick_check import QuickCheck

RIGHT = {"gpu": "GPU-1", "wrong": []}
WRONG = {"gpu": "GPU-2", "wrong": [["fp32 rows 1/8", 10, 11]]}


def player(folder: Path, *lines: object, ending: str = "exit 0") -> str:
    """An interpreter that says what a check says, whatever it is asked."""
    path = folder / "python"
    said = "\n".join(json.dumps(line) for line in lines)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n{ending}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_a_multiplication_that_errs_is_found_and_others_are_not_blamed() -> None:
    def flipped(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        result = torch.mm(left, right)
        result.view(-1)[7] += 1
        return result

    cpu = [torch.device("cpu")]
    fine, bad = (quick_check.check(["GPU-1"], cpu, exact.CPU_KINDS[:2], 16, how, 0.0) for how in (torch.mm, flipped))
    assert fine == [{"gpu": "GPU-1", "wrong": []}]
    (line,) = bad
    assert [name for name, golden, measured in line["wrong"] if golden != measured] == [
        "fp64 rows 1/8", "fp32 rows 1/8",
    ]  # fmt: skip


def test_gpus_that_compute_right_are_ready(attempt: Attempt) -> None:
    asked = {"disk_free_bytes": 1, "quick_check_s": 0.01, "python": sys.executable}
    attempt.start("pass", preparation=asked, env={"MUSTER_CHECKPOINT_DIR": str(attempt.folder / "ckpt" / "job")})
    until((attempt.folder / files.READY).exists, "ready")
    ready = files.read_json(attempt.folder / files.READY) or {}
    assert ready["looked_at"] == ["working folder", "disk", "GPUs computed right"]
    attempt.write(files.GO, {})
    until((attempt.folder / files.EXIT).exists, "the exit record")


def test_a_gpu_that_computes_wrong_is_named_in_the_record(attempt: Attempt, tmp_path: Path) -> None:
    asked = {"quick_check_s": 1.0, "python": player(tmp_path, RIGHT, WRONG)}
    attempt.start("pass", preparation=asked, env={"MUSTER_CHECKPOINT_DIR": str(attempt.folder)})
    until((attempt.folder / files.EXIT).exists, "the exit record")
    record: dict[str, Any] = files.read_json(attempt.folder / files.EXIT) or {}
    assert record["spawn_fault"] == "preflight"
    assert record["spawn_error"] == "GPU-2 computed wrong: fp32 rows 1/8 gave 11, and 10 is exact"
    assert record["quick_check"] == WRONG
    assert not list(attempt.folder.glob(".muster-write-test-*"))


def test_a_stop_ends_a_check_that_hangs(attempt: Attempt, tmp_path: Path) -> None:
    mark = tmp_path / "hangs"
    hanging = player(tmp_path, RIGHT, ending=f"touch {mark}; exec sleep 600")
    attempt.start("pass", preparation={"quick_check_s": 30.0, "python": hanging})
    until(mark.exists, "the check")
    attempt.write(files.STOP, {"reason": "cancel", "grace_until_boottime_ns": 0})
    until(lambda: (files.read_json(attempt.folder / files.CLEAN) or {}).get("clean") is True, "the proof")
    record = files.read_json(attempt.folder / files.EXIT) or {}
    assert (record["spawn_fault"], record["stop_reason"]) == ("refused", "cancel")


def preparation(python: str) -> Preparation:
    return Preparation(quick_check_s=1.0, python=python)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"fault": "ImportError: no torch"}], "ImportError: no torch"),
        ([RIGHT], "says nothing of GPU-2: it ended with code 3"),
        ([{"gpu": "GPU-1"}], "cannot be read"),
    ],
)
def test_a_check_that_could_not_be_made_accuses_no_gpu(tmp_path: Path, lines: list[object], words: str) -> None:
    check = QuickCheck(tmp_path, preparation(player(tmp_path, *lines, ending="exit 3")), ["GPU-1", "GPU-2"])

    def has_ended() -> bool:
        return check.is_over()

    with pytest.raises(UnreadyError, match=words):
        until(has_ended, "its end")


def test_an_interpreter_that_is_not_there_is_the_hosts_fault(tmp_path: Path) -> None:
    with pytest.raises(UnreadyError, match="cannot be started"):
        QuickCheck(tmp_path, preparation("/no/such/python"), ["GPU-1"])
