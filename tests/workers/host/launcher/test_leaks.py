"""Whatever part of an attempt dies: once its host is clean there is no process, port, shared memory or folder of it."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

from control.policy.policies import ACTIVATE, store_policy
from local.soak.books import SHARED_MEMORY, files_of, orphaned
from muster.domain.ids import JobId
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.states import JobState
from tests.fleet_factory import OPERATOR
from tests.host_case import HostCase
from tests.train.marks import TRAINS
from tests.waiting import wait_until
from workers.host.supervisor.proof.processes import attempt_processes, listening_ports

pytestmark = TRAINS
QUICK: Final = Policy(dispatch=DispatchPolicy(retry_backoff_s=0.1, retry_backoff_max_s=0.2))
PROGRAM: Final = """
import os, sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader
from muster import train

class Samples:
    def __len__(self):
        return 1 << 20
    def __getitem__(self, number):
        return torch.ones(100_000)

is_again, _, model = os.path.exists(sys.argv[1]), torch.manual_seed(1), torch.nn.Linear(2, 1)
run = train.start(model, checkpoint_every=2, data_parallel=False, deterministic=False)
batches = iter(DataLoader(Samples(), batch_size=4, num_workers=2))
for step in run.steps(2_000):
    next(batches)
    loss = model(torch.ones(3, 2)).sum()
    dist.all_reduce(loss.detach())
    if step == 3:
        print("trains", flush=True)
    if is_again:
        break
    time.sleep(0.3)
run.finish()
"""
"""Two ranks, each with two loaders that hand it batches in shared memory, and with checkpoints in progress.

An optimizer, DDP or deterministic kernels would load torch's compiler: a second of CPU a rank.
"""


@dataclass(frozen=True)
class Footprint:
    """Of one attempt while it ran."""

    processes: frozenset[int]
    ports: frozenset[int]
    segments: frozenset[Path]


def footprint(folder: Path) -> Footprint:
    order = json.loads((folder / "order.json").read_bytes())
    marks = (f"MUSTER_ATTEMPT_ID={order['attempt_id']}", f"MUSTER_NODE_ID={order['node_id']}")
    pids = attempt_processes(marks, None)
    segments = {path for pid in pids for path in files_of(pid) if path.is_relative_to(SHARED_MEMORY)}
    return Footprint(frozenset(pids), frozenset(listening_ports(pids)), frozenset(segments))


def pid_of(folder: Path, name: str, key: str = "pid") -> int:
    return int(json.loads((folder / name).read_bytes())[key])


def kill_rank(host: HostCase, folder: Path) -> None:
    os.kill(pid_of(folder, "ranks/1.json"), signal.SIGKILL)


def kill_loader(host: HostCase, folder: Path) -> None:
    (loader, *_) = psutil.Process(pid_of(folder, "ranks/1.json")).children()
    loader.kill()


def kill_torchrun(host: HostCase, folder: Path) -> None:
    os.kill(psutil.Process(pid_of(folder, "ranks/1.json", "entry_pid")).ppid(), signal.SIGKILL)


def kill_supervisor(host: HostCase, folder: Path) -> None:
    os.kill(pid_of(folder, "supervisor.json"), signal.SIGKILL)


def kill_supervisor_under_a_new_launcher(host: HostCase, folder: Path) -> None:
    """The launcher has ended as well, and the next one finds the rest of both."""
    host.close()
    kill_supervisor(host, folder)
    host.restart()


KILLS: Final[dict[str, Callable[[HostCase, Path], None]]] = {
    "a rank": kill_rank,
    "a loader": kill_loader,
    "torchrun": kill_torchrun,
    "the supervisor": kill_supervisor,
    "launcher and supervisor": kill_supervisor_under_a_new_launcher,
}


def submitted(host: HostCase, folder: Path, mark: Path) -> JobId:
    script = folder / "train.py"
    script.write_text(PROGRAM, encoding="utf-8")
    job_id = host.fleet.submit(
        program={"script": str(script), "args": [str(mark)]},
        shape={"nodes": 1, "gpus_per_node": 2, "ranks_per_node": 2},
        checkpoint={"folder": str(folder / "checkpoints")},
        restart={"max_restarts": 1},
        stop_grace_s=5,
    )
    host.fleet.cycle()
    return job_id


@pytest.mark.parametrize("victim", KILLS)
def test_nothing_of_an_attempt_is_left_whatever_of_it_was_killed(host: HostCase, tmp_path: Path, victim: str) -> None:
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, QUICK, reason="no need to wait here")
    fleet, mark, before = host.fleet, tmp_path / "again", orphaned(SHARED_MEMORY.iterdir())
    job_id = submitted(host, tmp_path, mark)
    host.turn_until(lambda: host.log(job_id).count(b"trains") == 2)
    (folder,) = (host.state_dir / "attempts").iterdir()
    ran = footprint(folder)
    assert len(ran.processes) >= 1 + 2 * (1 + 1 + 2), "torchrun, and of each rank its entry, itself and its loaders"
    assert len(ran.ports) >= 3, "torchrun's store, and each rank's gloo"
    mark.touch()
    KILLS[victim](host, folder)

    def is_over() -> bool:
        fleet.reconcile()
        fleet.cycle()
        return fleet.job(job_id).finished_at is not None

    host.turn_until(is_over, timeout_s=240)
    assert fleet.job(job_id).state is JobState.SUCCEEDED, fleet.job(job_id).state_reason
    assert len(fleet.attempts(job_id)) == 2
    host.run_until_clean()
    assert not [pid for pid in ran.processes if psutil.pid_exists(pid)]
    assert not ran.ports & listening_ports()
    assert not [path for path in ran.segments if path.exists()]
    wait_until(lambda: not orphaned(SHARED_MEMORY.iterdir()) - before)
    assert not list((tmp_path / "checkpoints").rglob(".gen-*.partial"))
    assert sorted(path.name for path in host.state_dir.iterdir() if path.is_dir()) == ["attempts"]
