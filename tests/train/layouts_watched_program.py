"""A model in a sharded layout whose copies are checked after each step; one bit of one piece may flip."""

import argparse
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from muster import train

parser = argparse.ArgumentParser()
parser.add_argument("layout", choices=("fsdp", "hsdp", "tensor"))
parser.add_argument("--flip", type=int, default=-1, help="the rank")
parser.add_argument("--copies", type=int, default=2)
parser.add_argument("--every", type=int, default=0, help="steps from checkpoint to checkpoint")
options = parser.parse_args()


class Net(nn.Module):
    """A model with a buffer that legally differs from rank to rank."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(24, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.seen += float(values.sum())
        found: torch.Tensor = self.down(self.up(self.norm(values)).tanh())
        return found


def laid_out(model: Net) -> Any:
    if options.layout == "tensor":
        mesh = train.mesh(data=1, tensor=-1)
        plan: Any = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(model, mesh["tensor"], plan)
        return mesh["data"]
    if options.layout == "hsdp":
        mesh = train.mesh(copies=options.copies, shards=-1)
        fully_shard(model, mesh=mesh)
        return None
    fully_shard(model, mesh=train.mesh(shards=-1)["shards"])
    return None


torch.manual_seed(1)
model = Net()
mesh = laid_out(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = train.start(model, optimizer, checkpoint_every=options.every, seed=5, data_mesh=mesh, check_replicas_every=1)
data = torch.randn(96, 8, generator=torch.Generator().manual_seed(3))
for step in run.steps(total=8):
    batch = data[run.sample_indices(len(data), run.share_of(12))]
    loss = (run.model(batch) - batch[:, :3].square()).square().mean()
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
    run.report(loss=loss)
    print("step", step + 1, repr(loss.item()), flush=True)  # noqa: T201
    if step == 5 and run.rank == options.flip:
        options.flip = -1  # once
        weight: Any = model.down.bias
        local = (weight.to_local() if hasattr(weight, "to_local") else weight).detach().view(torch.int32)
        local.view(-1)[0] ^= 1 << 8
run.finish()
