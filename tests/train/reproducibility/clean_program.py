"""Programs that a check passes: with workers, ahead by a batch, sharded, in mixed precision, accumulating."""

import random
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from muster import train

KIND = sys.argv[1]
BATCH, WIDTH = 4, 8


def made_model() -> torch.nn.Module:
    """Return the model, sharded if that is asked for."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, WIDTH), torch.nn.Dropout(0.2), torch.nn.Linear(WIDTH, 1))
    if KIND == "fsdp2":
        mesh = train.mesh(data=-1)
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


class Noisy(TensorDataset):
    """Rows with noise that a worker draws, from three generators."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        noise = torch.rand(1) + random.random() + np.random.rand()  # noqa: S311, NPY002  # what programs do
        return (self.tensors[0][index] + noise,)


def loss_of(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Return the loss, in mixed precision if that is asked for."""
    with torch.autocast("cpu", torch.bfloat16, enabled=KIND == "amp"):
        return torch.nn.functional.mse_loss(model(rows).float(), rows.sum(1, keepdim=True))


def main() -> None:
    model = made_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=40)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2, enabled=KIND == "amp")
    extras: dict[str, Any] = {"scaler": scaler} if KIND == "amp" else {}
    run = train.start(model, optimizer, scheduler, extras=extras, checkpoint_every=100)
    data = Noisy(torch.randn(64, 4, generator=torch.Generator().manual_seed(3)))
    num_pieces = 3 if KIND == "accumulation" else 1
    stream = run.samples("train", len(data), BATCH, endless=KIND != "epochs")
    loader = DataLoader(data, batch_sampler=stream, num_workers=2 if KIND in {"workers", "ahead"} else 0)
    batches = iter(loader)
    ahead = next(batches) if KIND == "ahead" else None
    best = 1e9
    loss = torch.zeros(())
    for _ in run.steps(total=40):
        optimizer.zero_grad()
        for _ in range(num_pieces):
            if ahead is not None:
                (rows,), ahead = ahead, next(batches)
            else:
                try:
                    (rows,) = next(batches)
                except StopIteration:
                    batches = iter(loader)
                    (rows,) = next(batches)
            loss = loss_of(run.model, rows) / num_pieces
            torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        best = min(best, loss.item())
        if dist.is_initialized():
            dist.all_reduce(loss)
        run.report(loss=loss)
    run.finish()


if __name__ == "__main__":
    main()
