"""A tenant's program that takes its batches from loader workers, and trains until it gets a stop.

It has no optimizer, no DDP and no deterministic kernels: the first use of each makes torch load its compiler, which
takes each rank a second of CPU time.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from muster import train


def begin(number: int) -> None:
    """What a program of its own has its workers do first: it says when one is ready."""
    print("ready", number, flush=True)  # noqa: T201


def main() -> None:
    method = sys.argv[1] if len(sys.argv) > 1 else "fork"
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    run = train.start(model=model, checkpoint_every=0, data_parallel=False, deterministic=False)
    loader = DataLoader(
        TensorDataset(torch.ones(1 << 16, 4)),
        batch_size=4,
        num_workers=2 if method == "fork" else 1,  # one that is a new interpreter imports torch again
        multiprocessing_context=method,
        worker_init_fn=None if method == "fork" else begin,
    )
    batches = iter(loader)
    for step in run.steps(total=1 << 20):
        try:
            (batch,) = next(batches)
        except StopIteration:
            batches = iter(loader)
            (batch,) = next(batches)
        loss = model(batch).square().mean()
        (slope,) = torch.autograd.grad(loss, model.weight)
        model.weight.data -= 0.01 * slope
        run.report(loss=loss)
        if run.rank == 0:
            print("step", step + 1, flush=True)  # noqa: T201
        time.sleep(0.01)
    sys.exit("it never got a stop")


if __name__ == "__main__":
    main()
