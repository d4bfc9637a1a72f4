"""Processes that a training program starts in addition to its loader's workers."""

import os
import subprocess
import sys

from tests.train.marks import TRAINS
from tests.train.train_case import PATIENCE_S, ROOT

pytestmark = TRAINS
STARTS_BOTH = """
import multiprocessing, os, signal, time
import psutil, torch
from torch.utils.data import DataLoader, TensorDataset
from muster.train.data.loaders import keep_loaders

def main():
    keep_loaders()
    loader = DataLoader(TensorDataset(torch.arange(8)), num_workers=2, multiprocessing_context="forkserver")
    batches = iter(loader)
    workers = {worker.pid for worker in batches._workers}
    for pid in workers | {psutil.Process(worker).ppid() for worker in workers}:
        os.kill(pid, signal.SIGTERM)
    other = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,))
    other.start()
    other.terminate()
    other.join(60)
    print("other", other.exitcode)
    other.kill()
    print("values", [int(value) for value, in batches])

main()
"""


def test_what_comes_of_a_fork_server_next_to_a_loader_ends_when_reported_and_the_loader_does_not() -> None:
    """Its workers get the signal while they import, and their fork server too."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", STARTS_BOTH]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["other -15", "values [0, 1, 2, 3, 4, 5, 6, 7]"]
