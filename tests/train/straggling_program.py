"""A program of several ranks, one of which is slow in a chosen way from a chosen step on.

It sleeps on purpose. A sleep stands for its computing, so that ranks on few processors do not slow each other, and a
longer one is the fault of the slow rank.
"""

import argparse
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset

from muster import train
from muster.train.report import pace

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=["nothing", "compute", "data", "garbage", "thread", "cpu"])
parser.add_argument("--layout", default="ddp", choices=["ddp", "fsdp", "tensor", "own"])
parser.add_argument("--at", type=int, default=0)
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--base-s", type=float, default=0.04)
parser.add_argument("--more-s", type=float, default=0.02)
parser.add_argument("--busy-s", type=float, default=0.0)
options = parser.parse_args()
pace.REPORT_EVERY_S = 0.2
WORLD = int(os.environ["WORLD_SIZE"])
LONG_CALL = 200_000
NUM_NEIGHBOURS = 2
NEIGHBOUR = """
import os, sys, threading
os.sched_setaffinity(0, {int(sys.argv[1])})
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""
"""It computes on one processor until this process ends or closes the pipe."""


class Slow(Dataset[torch.Tensor]):
    """Samples. On the rank that is slow by its data, each read takes longer, as from a slow disk."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if is_slow("data"):
            time.sleep(options.more_s)
        return torch.full((4,), float(index % 7))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        compute(options.base_s)
        if is_slow("compute"):
            compute(options.more_s)
        found: torch.Tensor = self.last(self.first(values).relu())
        return found


def is_slow(kind: str) -> bool:
    return bool(options.kind == kind and rank == options.rank and now >= options.at)


def compute(seconds: float) -> None:
    """Take time as a kernel does; a part of it may be processor time."""
    computes = options.kind != "cpu" or rank == options.rank  # the others leave the processors to the slow rank
    busy_s = min(options.busy_s, seconds) if computes else 0.0
    time.sleep(seconds - busy_s)
    until = time.thread_time() + busy_s
    while time.thread_time() < until:
        pass


def laid_out(model: nn.Module) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model in the layout of the options, with the arguments of ``start`` for it."""
    if options.layout == "fsdp":
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  # only this layout

        train.mesh(data=WORLD)
        fully_shard(model)
        return model, {}
    if options.layout == "tensor":
        from torch.distributed.tensor import parallel  # noqa: PLC0415  # only this layout

        mesh = train.mesh(data=WORLD // 2, tensor=2)
        plan = {"first": parallel.ColwiseParallel(), "last": parallel.RowwiseParallel()}
        parallel.parallelize_module(model, mesh["tensor"], plan)
        return model, {"data_mesh": mesh["data"]}
    return model, {"data_parallel": options.layout == "ddp"}


now = -1
rank = int(os.environ["RANK"])
torch.manual_seed(1)
model, arguments = laid_out(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
run = train.start(model, optimizer, checkpoint_every=0, check_replicas_every=0, **arguments)
threads: list[threading.Thread] = []
neighbours: list[subprocess.Popen[bytes]] = []
is_over = threading.Event()


def batches() -> Iterator[torch.Tensor]:
    while True:
        yield from DataLoader(Slow(), batch_size=1)


def burden() -> None:
    """Be slow by the host or by the process itself."""
    if is_slow("garbage"):
        began = time.perf_counter()
        while time.perf_counter() - began < options.more_s:
            gc.collect()
    if is_slow("thread") and not threads:
        threads.append(threading.Thread(target=spin, daemon=True))
        threads[0].start()
    if is_slow("cpu") and not neighbours:
        crowd_out()


def crowd_out() -> None:
    """Share one processor with busy processes from now on."""
    processor = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processor})
    for _ in range(NUM_NEIGHBOURS):
        command = [sys.executable, "-c", NEIGHBOUR, str(processor)]
        neighbours.append(subprocess.Popen(command, stdin=subprocess.PIPE))


def spin() -> None:
    """Compute next to training, and hold the interpreter's lock most of the time.

    Each call into C holds it for some milliseconds, so that a busy processor changes little of how long training waits.
    """
    while not is_over.is_set():
        sum(range(LONG_CALL))


source = batches()
for now in run.steps(total=options.steps):  # noqa: B007  # is_slow reads it
    batch = next(source)
    burden()
    loss = run.model(batch).square().mean()
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    if options.layout == "own":
        for parameter in model.parameters():
            assert parameter.grad is not None
            distributed.all_reduce(parameter.grad)
    optimizer.step()
    run.report(loss=loss, samples=1)
is_over.set()
for neighbour in neighbours:
    neighbour.communicate()
run.finish()
