"""A tenant's program that trains alike on any number of hosts: its batch is that of all ranks together.

One without a resume waits at ``--hang-at`` for its death; one alone waits from ``--alone-until`` on for a stop.
With ``--waits-for`` each waits behind its first checkpoint until that file is there.
One of several asks from ``--ask-at`` on for one host and for more than there may be, and waits for the result.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from muster import train

CHECKPOINT_EVERY = 4
NUM_SAMPLES = 64
GLOBAL_BATCH = 8
SEED = 5


def made() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    data = torch.randn(NUM_SAMPLES, 4, generator=torch.Generator().manual_seed(3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), data


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(model(batch), batch.sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--hang-at", type=int)
    parser.add_argument("--alone-until", type=int)
    parser.add_argument("--ask-at", type=int)
    parser.add_argument("--waits-for", type=Path)
    options = parser.parse_args()
    model, optimizer, data = made()
    run = train.start(
        model=model, optimizer=optimizer, checkpoint_every=CHECKPOINT_EVERY, asynchronous=False, seed=SEED
    )
    began_at = run.step
    for step in run.steps(total=options.steps):
        if began_at == 0 and step == options.hang_at:
            time.sleep(3600)
        if options.waits_for and step == began_at + CHECKPOINT_EVERY:
            print("waits", os.environ["MUSTER_FENCE"], run.rank, began_at, flush=True)  # noqa: T201  # as below
            while not options.waits_for.exists():
                time.sleep(0.02)
        while run.world_size > 1 and step == options.ask_at and not run.stop_requested:
            run.request_resize(7)
            time.sleep(0.5)
            run.request_resize(1)
            time.sleep(0.5)
        while options.alone_until and run.world_size == 1 and step >= options.alone_until and not run.stop_requested:
            time.sleep(0.02)
        indices = run.sample_indices(len(data), run.share_of(GLOBAL_BATCH))
        loss = loss_of(run.model, data[indices])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        run.report(loss=loss)
        place = (os.environ["MUSTER_FENCE"], run.rank, run.world_size, run.accumulation)
        print("step", step, *place, repr(loss.item()), *indices, flush=True)  # noqa: T201  # what the test reads
    run.finish()


if __name__ == "__main__":
    main()
