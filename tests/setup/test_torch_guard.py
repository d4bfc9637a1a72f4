import json
from pathlib import Path

from tools.torch_guard import Download, TorchPlan, read_plan, refusal, size_of_download, total_size

RECORDED = Path(__file__).parent


def recorded_plan(name: str) -> TorchPlan:
    return read_plan(json.loads((RECORDED / name).read_text()))


def test_the_cpu_build_passes() -> None:
    plan = recorded_plan("plan_cpu.json")
    assert not plan.is_cuda
    assert any(one.version == "2.13.0+cpu" for one in plan.downloads)


def test_the_cuda_build_is_recognised_by_what_it_brings() -> None:
    plan = recorded_plan("plan_cuda.json")
    assert plan.is_cuda
    assert {"triton", "cuda-toolkit", "nvidia-cudnn-cu13"} <= set(plan.cuda_names)
    assert "torch" not in plan.cuda_names


def test_the_refusal_reports_the_size_and_both_ways_on() -> None:
    plan = recorded_plan("plan_cuda.json")
    message = refusal(plan, size_of=lambda _url: 100_000_000)
    assert f"{len(plan.downloads) / 10:.1f} GB" in message
    assert "TORCH=cuda make setup" in message
    assert "TORCH=skip make setup" in message


def test_a_size_that_is_not_reported_is_not_invented() -> None:
    plan = TorchPlan((Download("torch", "2", "https://one"), Download("nvidia-x", "1", "https://two")))
    assert "at least 2.0 GB (1 of 2" in refusal(
        plan, size_of=lambda url: 2_000_000_000 if url.endswith("one") else None
    )
    assert "unknown size" in refusal(plan, size_of=lambda _url: None)


def test_a_local_file_is_measured_where_it_lies(tmp_path: Path) -> None:
    file = tmp_path / "torch-2.13.0+cpu.whl"
    file.write_bytes(b"x" * 1234)
    assert size_of_download(file.as_uri()) == 1234
    assert total_size([file.as_uri(), "ftp://elsewhere/file"]) == (1234, 1)
