"""A training in which one rank stands still in one step, in one of several ways: KIND [RANK [STEP]], else 1 and 12.

It prints ``stands still`` as it does so.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from muster import train


class Dead(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            time.sleep(3600)
            yield 1


def stand_still(kind: str) -> None:
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "endless":
        while True:
            pass
    elif kind == "loader":
        next(iter(DataLoader(Dead(), batch_size=1)))
    elif kind == "storage":
        pipe = f"{tempfile.mkdtemp()}/weights.pt"
        os.mkfifo(pipe)
        torch.load(pipe)


kind = sys.argv[1]
culprit = int(sys.argv[2]) if len(sys.argv) > 2 else 1
at = int(sys.argv[3]) if len(sys.argv) > 3 else 12
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
run = train.start(model, optimizer, checkpoint_every=5)
for step in run.steps(total=100):
    if step == at and run.rank == culprit:
        print("stands still", flush=True)  # noqa: T201
        stand_still(kind)
    if not (step == at and run.rank == culprit and kind in {"skipped", "gather"}):
        dist.all_reduce(torch.ones(3))
    elif kind == "gather":
        dist.all_gather_into_tensor(torch.ones(3 * run.world_size), torch.ones(3))
    loss = run.model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    time.sleep(0.15)
run.finish()
