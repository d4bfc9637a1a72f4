"""A program with one fault that a resume shows; without a name it has none."""

import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from muster import train

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
BATCH = 4


class Norm(torch.nn.Module):
    """A running mean, which is a registered buffer, or is not."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        if FAULT == "buffer":
            self.mean = torch.zeros(4)
        else:
            self.register_buffer("mean", torch.zeros(4), persistent=FAULT != "volatile")

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * values.detach().mean(0)
        return values - self.mean


class FirstRanks:
    """Saves the first rank's random numbers for all."""

    state = torch.empty(0)

    def state_dict(self) -> dict[str, torch.Tensor]:
        state = torch.get_rng_state()
        dist.broadcast(state, 0)
        return {"state": state}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state["state"]


def in_order(rows: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the rows over and over, from the first one on."""
    while True:
        yield from torch.split(rows, BATCH)


def reseeded(run: train.Run, extras: dict[str, Any]) -> None:
    """Do to the random numbers what the fault says."""
    if FAULT == "time":
        torch.manual_seed(time.time_ns())
    elif FAULT == "python":
        random.seed(7)
    elif FAULT == "numpy":
        np.random.seed(7)  # noqa: NPY002  # the global generator is meant, as below
    elif FAULT == "shared" and run.step:
        torch.set_rng_state(extras["first"].state)


def augmented(rows: torch.Tensor, noise: random.Random) -> torch.Tensor:
    """Return the rows with noise from generators of three kinds."""
    if FAULT == "sampler":
        return rows
    factor = noise.random() if FAULT == "generator" else random.random()  # noqa: S311  # no secret
    return rows * (1 + 0.01 * factor) * (1 + 0.01 * float(np.random.rand()))  # noqa: NPY002


def batches_of(data: torch.Tensor, run: train.Run) -> Iterator[torch.Tensor]:
    """Return the program's own order of data, if it has one, or that of a stream."""
    if FAULT == "order":
        return (rows for (rows,) in iter(DataLoader(TensorDataset(data), batch_size=BATCH, shuffle=True)))
    if FAULT == "sampler":
        return in_order(data)
    return (data[samples] for samples in run.samples("train", len(data), BATCH))


def main() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(Norm(), torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.8)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    data = torch.randn(64, 4, generator=torch.Generator().manual_seed(3))
    noise = random.Random(5)  # noqa: S311  # no secret
    extras: dict[str, Any] = {
        "average": average,
        "scaler": scaler,
        **({"first": FirstRanks()} if FAULT == "shared" else {}),
    }
    run = train.start(
        model,
        None if FAULT == "optimizer" else optimizer,
        None if FAULT in {"scheduler", "counter"} else scheduler,
        extras={name: extra for name, extra in extras.items() if name != FAULT},
        checkpoint_every=100,
        seed=9,
    )
    reseeded(run, extras)
    batches = batches_of(data, run)
    turn = 0
    for step in run.steps(total=40):
        rows = augmented(next(batches), noise)
        if FAULT == "counter":
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + turn)
        turn += 1  # noqa: SIM113  # a counter as tenants write it
        loss = torch.nn.functional.mse_loss(run.model(rows), rows.sum(1, keepdim=True))
        torch.autograd.backward(scaler.scale(loss))
        if FAULT != "boundary" or step % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step() if FAULT != "counter" else None
        average.update_parameters(model)
        run.report(loss=loss)
    run.finish()


if __name__ == "__main__":
    main()
