"""Declared exit codes 16 and 17 under ``muster run``: real supervisors and programs on one machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.domain.job.spec import JobSpec
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import Policy
from tests.workers.local.runs import ignore
from workers.local.local_run import LocalRun
from workers.local.plan import RunFolder, RunPlan

TURNS = """
turn=$(cat turn 2>/dev/null || echo 0); echo $((turn + 1)) > turn
echo "$CUDA_VISIBLE_DEVICES" >> gpus
set -- {codes}; shift $turn; exit ${{1:-0}}
"""
"""A program that ends with the next of its codes each time, and writes which GPUs it had."""


def run(
    folder: Path, *codes: int, declared: str | None = "megatron", spare: tuple[str, ...] = (), restarts: int = 0
) -> tuple[dict[str, Any], list[str]]:
    """Run the program to its end. Return the run's document, and what was reported."""
    argv = ("/bin/sh", "-c", TURNS.format(codes=" ".join(map(str, codes))))
    document = {
        "name": "job",
        "program": {"launcher": "command", "argv": argv, "working_dir": str(folder)},
        "restart": {"max_restarts": restarts},
        "rerun_exit_codes": declared,
    }
    spec, reported = JobSpec.model_validate(document, strict=False), list[str]()
    timers = replace(Timers.of(Policy()), retry_backoff_ms=10, retry_backoff_max_ms=10)
    plan = RunPlan(spec, ("GPU-a",), "/bin/sh", timers, 1 << 20, 20, 600.0, spare_gpus=spare)
    place = RunFolder(folder / "run", spec)
    try:
        return LocalRun(plan, place, reported.append, ignore).run(), reported
    finally:
        place.close()


def test_16_is_run_again_on_another_gpu_of_the_machine_at_no_restart(tmp_path: Path) -> None:
    ended, reported = run(tmp_path, 16, spare=("GPU-b",))
    assert (ended["state"], [each["cause"] for each in ended["attempts"]]) == ("SUCCEEDED", ["corruption", "succeeded"])
    assert (tmp_path / "gpus").read_text().split() == ["GPU-a", "GPU-b"]
    assert "it asked for another GPU: it runs on GPU-b instead of GPU-a" in reported


def test_without_another_gpu_it_runs_once_more_on_the_same_and_then_fails(tmp_path: Path) -> None:
    ended, reported = run(tmp_path, 16, 16, 16, restarts=5)
    assert (ended["state"], len(ended["attempts"])) == ("FAILED", 2)
    assert (tmp_path / "gpus").read_text().split() == ["GPU-a", "GPU-a"]
    assert any("this machine has none that is free of the run" in each for each in reported)


def test_17_ends_the_run_whatever_restarts_are_left(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, 17, restarts=5)
    assert (ended["state"], len(ended["attempts"])) == ("FAILED", 1)
    assert "failed the validation after a re-run" in ended["state_reason"]


@pytest.mark.parametrize("code", [16, 17])
def test_codes_of_the_programs_own_cost_restarts(tmp_path: Path, code: int) -> None:
    ended, _ = run(tmp_path, code, code, code, declared="own", restarts=1)
    assert [each["cause"] for each in ended["attempts"]] == ["user_error", "user_error"]
