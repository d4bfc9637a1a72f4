"""Starts of ranks: in a tenant's virtual environment, and by commands that form a group from the variables they get."""

import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.states import Cause
from workers.host import supervisor

from .attempt_case import Attempt

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: no group is formed here"
)
SUM = (
    "import torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo'); total = torch.ones(1); dist.all_reduce(total)\n"
    "print(f'rank {dist.get_rank()} of {dist.get_world_size()}: {int(total)}', flush=True)\n"
    "dist.destroy_process_group()\n"
)
OWN_LAUNCHER = f"""
import os, subprocess, sys
per_node, first = int(os.environ["NPROC_PER_NODE"]), int(os.environ["NODE_RANK"]) * int(os.environ["NPROC_PER_NODE"])
given = [{{**os.environ, "RANK": str(first + local), "LOCAL_RANK": str(local)}} for local in range(per_node)]
ranks = [subprocess.Popen([sys.executable, "-u", "-c", {SUM!r}], env=each) for each in given]
sys.exit(max(rank.wait() for rank in ranks))
"""


def _both_hosts(make_attempt: Callable[[], Attempt], program: str, ranks_per_node: int) -> list[Attempt]:
    hosts = [make_attempt(), make_attempt()]
    for node_rank, host in enumerate(hosts):
        place = {"node_rank": node_rank, "num_nodes": 2, "ranks_per_node": ranks_per_node, "grace_s": 30.0}
        host.start(program, **place)
    return hosts


@needs_torch
def test_a_command_on_each_of_two_hosts_forms_one_group_from_what_it_is_reported(
    make_attempt: Callable[[], Attempt],
) -> None:
    hosts = _both_hosts(make_attempt, SUM, 1)
    assert [host.ended(300)["launcher_exit_code"] for host in hosts] == [0, 0], [host.log() for host in hosts]
    assert "rank 0 of 2: 2" in hosts[0].log("0")
    assert "rank 1 of 2: 2" in hosts[1].log("1")


@needs_torch
def test_a_launcher_that_starts_several_ranks_a_host_numbers_them_itself(make_attempt: Callable[[], Attempt]) -> None:
    hosts = _both_hosts(make_attempt, OWN_LAUNCHER, 2)
    assert [host.ended(300)["launcher_exit_code"] for host in hosts] == [0, 0], [host.log() for host in hosts]
    said = hosts[0].log("0") + hosts[1].log("2")
    assert all(f"rank {rank} of 4: 4" in said for rank in range(4))


def test_a_command_finds_all_that_a_launcher_requests(attempt: Attempt) -> None:
    names = ["NNODES", "NODE_RANK", "NPROC_PER_NODE", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK", "LOCAL_RANK"]
    attempt.start(f"import os; print([os.environ.get(name) for name in {names}])", node_rank=2, num_nodes=3)
    attempt.ended()
    assert "['3', '2', '1', '1', '3', '2', '0']" in attempt.log("2")


def test_a_command_that_is_to_start_several_ranks_is_none_of_them(attempt: Attempt) -> None:
    names = ["NPROC_PER_NODE", "WORLD_SIZE", "RANK", "LOCAL_RANK"]
    attempt.start(f"import os; print([os.environ.get(name) for name in {names}])", ranks_per_node=4)
    attempt.ended()
    assert "['4', '4', None, None]" in attempt.log()


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A real one, empty."""
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=300)
    return place


def _packages(venv: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))


def _distribution(venv: Path, name: str, version: str) -> None:
    place = _packages(venv) / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


def _under_torchrun(attempt: Attempt, venv: Path, source: str = "pass") -> dict[str, object]:
    script = attempt.folder / "train.py"
    script.write_text(source, encoding="utf-8")
    attempt.order(launcher="torchrun", script=str(script), venv=str(venv))
    supervisor.spawn_supervisor(attempt.folder)
    return attempt.ended(300)


def test_a_command_runs_with_its_environment_first_on_the_path(attempt: Attempt, venv: Path) -> None:
    code = "import os, sys; print(sys.prefix, os.environ['VIRTUAL_ENV'])"
    attempt.order(command=["python", "-c", code], venv=str(venv))
    supervisor.spawn_supervisor(attempt.folder)
    assert attempt.ended()["launcher_exit_code"] == 0, attempt.log()
    assert f"{venv} {venv}" in attempt.log()


@pytest.mark.parametrize(
    ("version", "words"),
    [(None, "has no torch, and torchrun is part of it"), ("1.13.1", "has torch 1.13.1; torchrun needs 2.0 or newer")],
)
def test_an_environment_that_torchrun_cannot_start_from_is_reported_so(
    attempt: Attempt, venv: Path, version: str | None, words: str
) -> None:
    if version is not None:
        _distribution(venv, "torch", version)
    verdict = classify(parse_exit_record(_under_torchrun(attempt, venv)), None)
    assert verdict.cause is Cause.USER_ERROR
    assert words in verdict.proof


def test_a_folder_that_is_no_environment_is_reported_so(attempt: Attempt, tmp_path: Path) -> None:
    verdict = classify(parse_exit_record(_under_torchrun(attempt, tmp_path)), None)
    assert verdict.cause is Cause.USER_ERROR
    assert "is no virtual environment on this host: it has no pyvenv.cfg" in verdict.proof


def test_an_interpreter_that_does_not_work_is_reported_with_its_own_words(attempt: Attempt, venv: Path) -> None:
    python = venv / "bin" / "python"
    python.unlink()
    python.write_text("#!/bin/sh\necho no such library\n", encoding="utf-8")
    python.chmod(0o755)
    verdict = classify(parse_exit_record(_under_torchrun(attempt, venv)), None)
    assert verdict.cause is Cause.USER_ERROR
    assert "does not work; it printed: no such library" in verdict.proof


@needs_torch
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo muster-environment:x", "does not work; it printed: muster-environment:x"),
        ("echo 'muster-environment:[1]'", "does not work; it printed: muster-environment:[1]"),
        ("echo 'muster-environment:{\"torch\": 7}'", "has no torch"),
        ("exec sleep 900 >/dev/null 2>&1", "does not work; it printed: nothing"),
        ("while true; do echo nonsense; done", "does not work; it printed: "),
    ],
)
def test_an_interpreter_that_means_harm_is_only_an_interpreter_that_does_not_work(
    attempt: Attempt, venv: Path, script: str, words: str
) -> None:
    python = venv / "bin" / "python"
    python.unlink()
    python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    python.chmod(0o755)
    verdict = classify(parse_exit_record(_under_torchrun(attempt, venv)), None)
    assert verdict.cause is Cause.USER_ERROR
    assert words in verdict.proof
    assert attempt.read("clean.json")["clean"]
    assert not attempt.processes()


def test_an_environment_without_our_runtime_runs_and_the_launchers_log_reports_it(attempt: Attempt, venv: Path) -> None:
    """Torch comes by a path file from the packages next to our own; our own code does not."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    (_packages(venv) / "torch.pth").write_text(f"{Path(found.origin).parents[1]}\n", encoding="utf-8")
    record = _under_torchrun(attempt, venv, "import sys; print(sys.prefix)")
    assert record["launcher_exit_code"] == 0, attempt.log("launcher")
    assert str(venv) in attempt.log("0")
    assert "has no muster.train: a program that imports it needs the wheel muster-train" in attempt.log("launcher")
