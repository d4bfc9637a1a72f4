"""The suite for GPUs, as far as it goes without one: the same program, small, on the CPU over gloo."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.train.marks import TRAINS

pytestmark = TRAINS
torch = pytest.importorskip("torch")

from benchmarks import __main__ as bench  # noqa: E402  # they import torch
from benchmarks import figures, runs, runtime_gpu  # noqa: E402
from benchmarks.gpu_program import Plan, Seen  # noqa: E402
from examples.pretrain_gpt import Gpt, Shape  # noqa: E402

TINY = Plan(Shape(), samples=2, steps=4, rounds=1, num_saves=2)
NVIDIA_H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_small_gpt_is_measured_on_the_cpu_and_has_no_mfu(num_ranks: int) -> None:
    pace, reports, stall = runtime_gpu.Stage(num_ranks, has_gpu=False).figures(TINY)
    assert pace.name.endswith("TFLOP/s a GPU")
    assert 0 < pace.value < 1
    tokens = num_ranks * TINY.samples * TINY.shape.context
    assert pace.peers["tokens/s"] == pytest.approx(tokens / (pace.peers["step ms"] / 1e3))
    assert reports.peers["reported ms"] > 0 < reports.peers["unreported ms"]
    num_values = 3 * sum(torch.numel(each) for each in Gpt(TINY.shape).parameters())
    assert stall.peers["state MB"] == pytest.approx(4 * num_values / 1e6, rel=0.01), "all ranks' parts, and each once"
    assert stall.peers["torch.save s"] > 0
    assert stall.value == pytest.approx(stall.peers["stall s"] / stall.peers["torch.save s"])


def test_a_plan_of_checkpoints_alone_has_the_stall_and_no_pace() -> None:
    (stall,) = runtime_gpu.Stage(1, has_gpu=False).figures(replace(TINY, steps=0, rounds=0))
    assert "checkpoint stall" in stall.name
    assert stall.value > 0


def test_mfu_is_the_runs_report_next_to_what_the_clock_states() -> None:
    seen = asdict(Seen(NVIDIA_H100, [0.30, 0.25], [0.3], [1.0], [10.0], 1))
    plan = Plan(Shape(layers=24, heads=16, head_dim=128, context=2048), 8, steps=4, rounds=2, num_saves=1)
    words = [{"type": "pace", "mfu": mfu} for mfu in (None, 0.41, 0.43, 0.42)]
    _, mfu = runtime_gpu.Stage(1, has_gpu=True)._pace([seen], words, plan)
    assert mfu.value == pytest.approx(42.0)
    width, layers, vocabulary = 2048, 24, 16
    per_token = 6 * (12 * layers * width**2 + vocabulary * width) + 12 * layers * width * 2048
    assert mfu.peers["by the clock %"] == pytest.approx(8 * 2048 * per_token / 0.25 / 989e12 * 100)


def test_a_gpu_whose_peak_is_unknown_has_no_mfu() -> None:
    seen = asdict(Seen("NVIDIA A1000", [0.3], [0.3], [], [], 1))
    found = list(runtime_gpu.Stage(1, has_gpu=True)._pace([seen], [{"type": "pace", "mfu": None}], TINY))
    assert [figure.unit for figure in found] == ["TFLOP/s"]


def test_steps_that_the_supervisor_did_not_receive_make_no_figure() -> None:
    with pytest.raises(RuntimeError, match="received 0 steps, and at least 6 were reported"):
        runtime_gpu.Stage(1, has_gpu=False)._require_received([], TINY)


@pytest.mark.parametrize(("gib", "layers"), [(80, 24), (24, 12)])
def test_the_larger_model_that_fits_is_taken(gib: int, layers: int) -> None:
    assert runtime_gpu.pace_plan(gib << 30).shape.layers == layers


def test_a_small_gpu_is_stated_to_be_too_small() -> None:
    with pytest.raises(figures.NothingToMeasureError, match=r"8\.0 GiB of memory; 14 are needed"):
        runtime_gpu.pace_plan(8 << 30)


def test_without_cuda_the_suite_reports_it_aloud_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main(["runtime_gpu"]) == 0
    assert "SKIPPED, NOTHING WAS MEASURED" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
