"""A small model in any layout, that leaves its parameters and moments behind, whole, as it begins and as it ends."""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from muster import train

WIDTH = 24
GLOBAL_BATCH = 24


def whole(value: Any) -> torch.Tensor:
    """On every rank, which all must ask."""
    tensor: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return tensor.detach().clone()


def leave_behind(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, path: Path) -> None:
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = whole(parameter)
        for moment, value in optimizer.state[parameter].items():
            found[f"{moment} of {name}"] = whole(value)
    if rank == 0:
        torch.save(found, path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--layout", choices=("ddp", "fsdp"))
    parser.add_argument("--tensor", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(1)
    model = nn.Sequential()
    model.add_module("up", nn.Linear(8, WIDTH))
    model.add_module("bend", nn.Tanh())
    model.add_module("down", nn.Linear(WIDTH, 3))
    data_mesh = None
    if options.layout == "fsdp":
        mesh = train.mesh(shards=-1, tensor=options.tensor)
        if options.tensor > 1:
            parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["shards"])
        data_mesh = mesh["shards"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = train.start(model, optimizer, checkpoint_every=0, seed=5, data_mesh=data_mesh)
    leave_behind(model, optimizer, run.rank, options.folder / "began.pt")
    data = torch.randn(96, 8, generator=torch.Generator().manual_seed(3))
    for _ in run.steps(total=options.steps):
        batch = data[run.sample_indices(len(data), run.share_of(GLOBAL_BATCH))]
        loss = (run.model(batch) - batch[:, :3].square()).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        run.report(loss=loss)
    leave_behind(model, optimizer, run.rank, options.folder / "ended.pt")
    run.finish()


main()
