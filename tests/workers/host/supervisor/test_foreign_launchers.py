"""Foreign launchers as installed here: their ranks meet, receive a stop, end with a cause and leave nothing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.states import Cause
from workers.host import supervisor

from .attempt_case import Attempt
from .test_launchers import SUM, needs_torch

ROOT = Path(__file__).resolve().parents[4]
TWO_RANKS = 2
RECEIVES = """
import json, os, socket, sys, time
channel = socket.socket(socket.AF_UNIX); channel.connect(os.environ["MUSTER_TRAIN_SOCKET"])
rank = int(os.environ.get("RANK", 0))
channel.sendall(json.dumps({"type": "hello", "rank": rank}).encode() + b"\\n")
print("rank", rank, "listens", flush=True)
word = json.loads(channel.makefile().readline())
time.sleep(2)  # longer than a launcher that was asked to end would leave it
print("rank", rank, "saved at", word["reason"], flush=True)
sys.exit(75)
"""
FAILS = """
import os, sys, time
if os.environ["RANK"] == "1": raise KeyError("no such column: tokens")
time.sleep(600)
"""


def _has_slurm() -> bool:
    asks = shutil.which("sinfo")
    return asks is not None and subprocess.run([asks], capture_output=True, check=False).returncode == 0


def _needs(tool: str, *, is_there: bool) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not is_there, reason=f"{tool} IS NOT HERE: no job is run under it")


MPIRUN = pytest.param(
    ("mpirun --oversubscribe -np {ranks}", "OMPI_COMM_WORLD_LOCAL_RANK"),
    id="mpirun",
    marks=_needs("OPEN MPI (mpirun)", is_there=shutil.which("mpirun") is not None),
)
SRUN = pytest.param(
    ("srun --kill-on-bad-exit=1 --nodes 1 --ntasks {ranks} --nodelist $(hostname -s)", "SLURM_LOCALID"),
    id="srun",
    marks=_needs("SLURM (srun, and a controller that answers sinfo)", is_there=_has_slurm()),
)
needs_ray = _needs("RAY", is_there=shutil.which("ray") is not None)
needs_deepspeed = _needs("DEEPSPEED", is_there=shutil.which("deepspeed") is not None)


def _script(attempt: Attempt, launcher: tuple[str, str], program: str, *, is_exec: bool = True) -> dict[str, Any]:
    """An order's fields, as docs/tenant/launchers.md asks a tenant to write them."""
    command, local_rank = launcher
    source = attempt.folder / "program.py"
    source.write_text(program, encoding="utf-8")
    told = f"RANK=$((NODE_RANK * NPROC_PER_NODE + {local_rank})) LOCAL_RANK=${local_rank}"
    start = f"{command.format(ranks='$NPROC_PER_NODE')} sh -c '{told} exec {sys.executable} -u {source}'"
    script = attempt.folder / "launch.sh"
    script.write_text(f"{'exec ' if is_exec else ''}{start}\n", encoding="utf-8")
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    passed = {name: value for name, value in os.environ.items() if name == "SLURM_CONF"}
    return {"command": ["/bin/bash", str(script)], "ranks_per_node": TWO_RANKS, "env": {**allowed, **passed}}


def _run(attempt: Attempt, **fields: Any) -> None:
    attempt.order(**{"grace_s": 60.0, **fields})
    supervisor.spawn_supervisor(attempt.folder)


def _leaves_nothing(attempt: Attempt) -> None:
    assert attempt.read("clean.json")["clean"]
    assert not attempt.processes()


@needs_torch
@pytest.mark.parametrize("launcher", [MPIRUN, SRUN])
def test_its_ranks_form_one_group(attempt: Attempt, launcher: tuple[str, str]) -> None:
    _run(attempt, **_script(attempt, launcher, SUM))
    assert attempt.ended(300)["launcher_exit_code"] == 0, attempt.log()
    assert all(f"rank {rank} of 2: 2" in attempt.log() for rank in range(TWO_RANKS))
    _leaves_nothing(attempt)


@needs_torch
@pytest.mark.parametrize("launcher", [MPIRUN, SRUN])
def test_ranks_that_none_distinguished_find_out_themselves(attempt: Attempt, launcher: tuple[str, str]) -> None:
    """The command alone, without a shell that says ``RANK`` to each."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom muster import train\n{SUM}"
    fields = _script(attempt, launcher, program)
    start = f"exec {launcher[0].format(ranks=TWO_RANKS)} {sys.executable} -u {attempt.folder / 'program.py'}\n"
    (attempt.folder / "launch.sh").write_text(start, encoding="utf-8")
    _run(attempt, **fields)
    assert attempt.ended(300)["launcher_exit_code"] == 0, attempt.log()
    assert all(f"rank {rank} of 2: 2" in attempt.log() for rank in range(TWO_RANKS))


@needs_torch
@pytest.mark.parametrize("launcher", [MPIRUN])
def test_one_on_each_of_two_hosts_forms_one_group(
    make_attempt: Callable[[], Attempt], launcher: tuple[str, str]
) -> None:
    hosts = [make_attempt(), make_attempt()]
    for node_rank, host in enumerate(hosts):
        _run(host, **_script(host, launcher, SUM), node_rank=node_rank, num_nodes=2)
    assert [host.ended(300)["launcher_exit_code"] for host in hosts] == [0, 0], [host.log() for host in hosts]
    said = hosts[0].log("0") + hosts[1].log("2")
    assert all(f"rank {rank} of 4: 4" in said for rank in range(4))


@pytest.mark.parametrize("is_exec", [True, False], ids=["exec", "under-a-shell"])
@pytest.mark.parametrize("launcher", [MPIRUN, SRUN])
def test_its_ranks_have_their_grace_when_they_are_ordered_to_stop(
    attempt: Attempt, launcher: tuple[str, str], *, is_exec: bool
) -> None:
    _run(attempt, **_script(attempt, launcher, RECEIVES, is_exec=is_exec))
    for rank in range(TWO_RANKS):
        attempt.wait_for_log(f"rank {rank} listens")
    attempt.stop("reclaim", after_s=60)
    record = attempt.ended()
    assert all(f"rank {rank} saved at reclaim" in attempt.log() for rank in range(TWO_RANKS)), attempt.log()
    assert classify(parse_exit_record(record), None).cause is Cause.RECLAIMED
    _leaves_nothing(attempt)


@pytest.mark.parametrize("launcher", [MPIRUN, SRUN])
def test_a_rank_that_fails_is_reported_by_its_own_words(attempt: Attempt, launcher: tuple[str, str]) -> None:
    _run(attempt, **_script(attempt, launcher, FAILS))
    verdict = classify(parse_exit_record(attempt.ended()), None)
    assert verdict.cause is Cause.USER_ERROR
    assert "no such column: tokens" in verdict.proof
    _leaves_nothing(attempt)


RAY_DRIVER = """
import os, ray
ray.init(address="auto")
@ray.remote(num_cpus=1)
class Rank:
    def add(self, rank, world, port):
        import torch, torch.distributed as dist
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        total = torch.ones(1); dist.all_reduce(total)
        return int(total)
world = int(os.environ["WORLD_SIZE"])
ranks = [Rank.remote() for _ in range(world)]
port = int(os.environ["MASTER_PORT"]) + 1
print("sums", ray.get([rank.add.remote(number, world, port) for number, rank in enumerate(ranks)]), flush=True)
"""


@needs_ray
def test_a_ray_driver_has_its_cluster_and_leaves_none(attempt: Attempt) -> None:
    """Ray's daemons leave their parent; they are found by the attempt's mark."""
    ray = Path(str(shutil.which("ray")))
    driver, script = attempt.folder / "driver.py", attempt.folder / "launch.sh"
    driver.write_text(RAY_DRIVER, encoding="utf-8")
    start = "ray start --head --port $MASTER_PORT --num-cpus 2 --disable-usage-stats --include-dashboard=false"
    script.write_text(f"{start} && exec {ray.with_name('python')} {driver}\n", encoding="utf-8")
    _run(attempt, command=["/bin/bash", str(script)], ranks_per_node=TWO_RANKS, env={"PATH": os.environ["PATH"]})
    assert attempt.ended(300)["launcher_exit_code"] == 0, attempt.log()
    assert "sums [2, 2]" in attempt.log()
    assert attempt.read("exit.json")["killed_descendants"] > 0
    _leaves_nothing(attempt)


DEEPSPEED_PROGRAM = """
import deepspeed, torch, torch.distributed as dist
deepspeed.init_distributed("gloo"); total = torch.ones(1); dist.all_reduce(total)
print("sum", int(total), flush=True)
dist.destroy_process_group()
"""


@needs_deepspeed
@needs_torch
def test_a_deepspeed_program_is_a_script_for_torchrun(attempt: Attempt) -> None:
    python = Path(str(shutil.which("deepspeed"))).with_name("python")
    script = attempt.folder / "train.py"
    script.write_text(DEEPSPEED_PROGRAM, encoding="utf-8")
    _run(attempt, launcher="torchrun", script=str(script), python=str(python), ranks_per_node=TWO_RANKS)
    assert attempt.ended(300)["launcher_exit_code"] == 0, attempt.log("launcher") + attempt.log("0")
    assert "sum 2" in attempt.log("0")
    assert "sum 2" in attempt.log("1")
    _leaves_nothing(attempt)
