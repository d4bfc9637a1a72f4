"""Figures in other tools: written during training, dropped when a tool is slow, given up when it fails.

TensorBoard's library is real. MLflow's and wandb's bring more than all our own; modules of their names, which write
down how they are called, stand for them.
"""

import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from muster.train.checkpoint.storage.places import S3Place
from muster.train.report import outlets
from muster.train.report.outlets import Outlets, require_outlets
from muster.train.runtime.environment import Environment
from tests.train.marks import TRAINS
from tests.train.train_case import PATIENCE_S, Listening, Training

pytestmark = TRAINS
RECORDS = """
import json, types
def note(name, *args, **named):
    with open({path!r}, "a") as file:
        file.write(json.dumps([name, args, named]) + "\\n")
"""
MLFLOW = """
RUNS = []
def start_run(run_id=None, run_name=None, tags=None):
    note("start_run", run_id, run_name, tags)
    RUNS.append(tags)
    return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "run-7"))
def search_runs(filter_string, max_results, output_format):
    assert (max_results, output_format) == (1, "list")
    held = [f"tags.`{name}` = '{value}'" for tags in RUNS for name, value in (tags or {}).items()]
    return [types.SimpleNamespace(info=types.SimpleNamespace(run_id="run-7"))] if filter_string in held else []
def log_params(params): note("log_params", params)
def log_metrics(metrics, step): note("log_metrics", metrics, step=step)
def end_run(): note("end_run")
"""
WANDB = """
def init(**named):
    note("init", **named)
    def log(figures, step): note("log", figures, step=step)
    return types.SimpleNamespace(log=log, finish=lambda: note("finish"))
"""


class Tool:
    """A module of another's name, and what was called of it."""

    def __init__(self, folder: Path, name: str, source: str) -> None:
        self._calls = folder / "calls.jsonl"
        (folder / f"{name}.py").write_text(RECORDS.format(path=str(self._calls)) + source, encoding="utf-8")

    def called(self) -> list[list[Any]]:
        return [json.loads(line) for line in self._calls.read_text(encoding="utf-8").splitlines()]


class Case:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.around = Environment(checkpoint_dir=folder / "checkpoints", job_id="job_1")
        self.warned: list[tuple[str, str]] = []

    def open(self, *names: str, config: Mapping[str, Any] | None = None) -> Outlets:
        return Outlets(names, self.around, config, lambda code, words: self.warned.append((code, words)))

    def goes_on_elsewhere(self, name: str) -> None:
        """On a host that has a folder of its own."""
        place = S3Place("checkpoints", "team/job_1")
        self.around = Environment(checkpoint_dir=self._folder / name, checkpoint_store=place, job_id="job_1")


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def reported(opened: Outlets, *, begins_at: int, num_steps: int = 2) -> None:
    opened.receive("resumed", {"step": begins_at, "generation": ""})
    for step in range(begins_at + 1, begins_at + num_steps + 1):
        opened.receive("step", {"step": step, "loss": 1 / step, "step_s": 0.5, "samples": 8})
    opened.receive(
        "pace", {"step": begins_at + num_steps, "num_steps": 2, "data_s": 0.25, "mfu": None, "hfu": float("nan")}
    )
    opened.receive("checkpoint", {"step": 1, "generation": "step-00000001/gen-1", "status": "committed"})
    opened.close()


def test_mlflow_has_one_run_a_job_that_goes_on_after_a_restart(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = Tool(tmp_path, "mlflow", MLFLOW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    reported(case.open("mlflow", config={"lr": 0.1}), begins_at=0)
    reported(case.open("mlflow", config={"lr": 0.1}), begins_at=2, num_steps=1)
    monkeypatch.delitem(sys.modules, "mlflow")
    assert tool.called() == [
        ["start_run", [None, "job_1", {"muster.job_id": "job_1"}], {}],
        ["log_params", [{"lr": "0.1"}], {}],
        ["log_metrics", [{"train/loss": 1.0, "train/step_s": 0.5}], {"step": 1}],
        ["log_metrics", [{"train/loss": 0.5, "train/step_s": 0.5}], {"step": 2}],
        ["log_metrics", [{"time/data_s": 0.25}], {"step": 2}],
        ["end_run", [], {}],
        ["start_run", ["run-7", None, None], {}],
        ["log_metrics", [{"train/loss": 1 / 3, "train/step_s": 0.5}], {"step": 3}],
        ["log_metrics", [{"time/data_s": 0.25}], {"step": 3}],
        ["end_run", [], {}],
    ]
    assert case.warned == []


def test_mlflow_finds_the_jobs_run_from_a_host_that_did_not_begin_it(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = Tool(tmp_path, "mlflow", MLFLOW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    for host, begins_at in (("first", 0), ("second", 2), ("first", 4)):
        case.goes_on_elsewhere(host)
        reported(case.open("mlflow"), begins_at=begins_at)
    monkeypatch.delitem(sys.modules, "mlflow")
    begun = [called[1] for called in tool.called() if called[0] == "start_run"]
    assert begun == [[None, "job_1", {"muster.job_id": "job_1"}], ["run-7", None, None], ["run-7", None, None]]
    assert case.warned == []


def test_wandb_has_the_jobs_own_run(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Tool(tmp_path, "wandb", WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    reported(case.open("wandb", config={"lr": 0.1}), begins_at=0, num_steps=1)
    monkeypatch.delitem(sys.modules, "wandb")
    folder = str(tmp_path / "checkpoints/outlets")
    assert tool.called() == [
        ["init", [], {"dir": folder, "config": {"lr": 0.1}, "id": "job_1", "resume": "allow"}],
        ["log", [{"train/loss": 1.0, "train/step_s": 0.5}], {"step": 1}],
        ["log", [{"time/data_s": 0.25}], {"step": 1}],
        ["finish", [], {}],
    ]


def test_what_fails_is_stated_once_and_the_others_go_on(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    class Works:
        def __init__(self, *_: object) -> None: ...

        def write(self, step: int, figures: Mapping[str, float]) -> None:
            assert figures
            written.append(step)

        def close(self) -> None:
            written.append(-1)

    class Fails(Works):
        def write(self, step: int, figures: Mapping[str, float]) -> None:
            raise RuntimeError(f"no way at {step} with {len(figures)}")

    def missing(*_: object) -> Works:
        raise ModuleNotFoundError("No module named 'wandb'")

    monkeypatch.setattr(outlets, "_MAKERS", {"tensorboard": Works, "mlflow": Fails, "wandb": missing})
    reported(case.open("wandb", "mlflow", "tensorboard"), begins_at=0)
    assert written == [1, 2, 2, -1]
    assert case.warned == [
        (
            "outlet_wandb",
            "no figures go to wandb any more: its library is not in the job's environment: No module named 'wandb'",
        ),
        ("outlet_mlflow", "no figures go to mlflow any more: RuntimeError: no way at 1 with 2"),
    ]


def test_a_tool_that_hangs_holds_up_none_and_what_was_dropped_is_counted(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    goes_on, is_stuck = threading.Event(), threading.Event()

    class Hangs:
        def __init__(self, *_: object) -> None: ...

        def write(self, _step: int, _figures: Mapping[str, float]) -> None:
            is_stuck.set()
            goes_on.wait(PATIENCE_S)

        def close(self) -> None: ...

    monkeypatch.setattr(outlets, "_MAKERS", {"tensorboard": Hangs})
    monkeypatch.setattr(outlets, "MOST_WAITING", 4)
    monkeypatch.setattr(outlets, "_CLOSING_S", 0.01)
    opened = case.open("tensorboard")
    opened.receive("resumed", {"step": 0})
    opened.receive("step", {"step": 1, "loss": 1.0})
    assert is_stuck.wait(PATIENCE_S)
    for step in range(2, 12):
        opened.receive("step", {"step": step, "loss": 1.0})
    assert opened.num_dropped == 6
    opened.close()
    goes_on.set()
    assert "10 figures did not reach tensorboard" in capsys.readouterr().err


def test_an_outlet_that_is_not_known_is_refused_with_those_that_are() -> None:
    assert require_outlets(["mlflow", "mlflow"]) == ("mlflow",)
    with pytest.raises(ValueError, match="no outlet 'tensorbord': known are tensorboard, mlflow, wandb"):
        require_outlets(["tensorbord"])


def test_a_real_training_writes_event_files_that_go_on_after_a_resume(training: Training, tmp_path: Path) -> None:
    with Listening(tmp_path / "socket") as supervisor:
        for num_steps in ("4", "6"):
            attempt = training.start(
                "--steps",
                num_steps,
                num_ranks=2,
                only={0: {"MUSTER_TRAIN_SOCKET": str(supervisor.path)}},
                MUSTER_OUTLETS="tensorboard",
            )
            assert attempt.ended() == [0, 0], [rank.errors for rank in attempt.ranks]
    events = EventAccumulator(str(training.checkpoints / "outlets/tensorboard"))
    events.Reload()
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    said = {one["step"]: one["loss"] for one in supervisor.received("step")}
    assert losses == pytest.approx(said)
    assert sorted(losses) == [1, 2, 3, 4, 5, 6]
    assert events.Scalars("time/forward_s")
    assert supervisor.received("warning", code="outlet_tensorboard") == []
