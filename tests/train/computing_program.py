"""A program whose compute is checked: on one rank, results of a module get a flipped bit. Options state where and when.

It has random numbers, a batch norm and gradients that are summed over two steps, none of which a check may touch.
"""

import argparse
import hashlib

import torch
from torch import nn
from torch.nn import functional

from muster import train

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=("shard", "ddp", "hybrid", "tensor"), default="shard")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--check", type=int, default=0)
parser.add_argument("--every", type=int, default=4, help="steps from checkpoint to checkpoint")
parser.add_argument("--keep", type=int, default=3)
parser.add_argument("--flips", default="", help="RANK:FIRST-LAST: the steps whose results get a flipped bit there")
parser.add_argument("--once", action="store_true", help="one result alone, in the first of them")
parser.add_argument("--backward", action="store_true", help="flip a bit of a gradient, not of a result")
parser.add_argument("--odd", type=int, help="a rank whose function gives another loss, as a program may write it")
parser.add_argument("--accumulated", action="store_true", help="call the check where gradients are not averaged")
options = parser.parse_args()
flip_rank, flip_steps = -1, range(0)
if options.flips:
    rank_text, steps_text = options.flips.split(":")
    first, last = map(int, steps_text.split("-"))
    flip_rank, flip_steps = int(rank_text), range(first, last + 1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(functional.dropout(self.norm(self.first(values)).tanh(), 0.2))
        return found


now = 0
done = {"flips": 0, "calls": 0}
torch.manual_seed(4)
model = Net()
data_mesh = None
if options.layout == "shard":
    from torch.distributed.fsdp import fully_shard

    mesh = train.mesh(data=-1)
    fully_shard(model.first, mesh=mesh)
    fully_shard(model, mesh=mesh)
if options.layout == "hybrid":
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=train.mesh(copies=2, data=-1))
if options.layout == "tensor":
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = train.mesh(data=-1, tensor=2)
    model.norm = nn.Identity()  # type: ignore[assignment]  # it has parameters on no mesh
    parallelize_module(model, mesh["tensor"], {"first": ColwiseParallel(), "last": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    data_mesh = mesh["data"]
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.randn(256, 8, generator=torch.Generator().manual_seed(3))
run = train.start(
    model,
    optimizer,
    checkpoint_every=options.every,
    keep=options.keep,
    seed=5,
    data_mesh=data_mesh,
    on_value_fault="rollback",
    check_compute_every=options.check,
)


def is_flipped() -> bool:
    """Whether this rank computes wrong now."""
    if run.rank != flip_rank or now not in flip_steps or (options.once and done["flips"]):
        return False
    done["flips"] += 1
    return True


def flip(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
    """Flip one bit of a product of matrices, as a defective GPU does."""
    if not options.backward and is_flipped():
        output.data.view(torch.int32)[1, 2] ^= 1 << 21


def flip_gradient(_module: nn.Module, gradients: tuple[torch.Tensor, ...], *_: object) -> None:
    if options.backward and is_flipped():
        gradients[0].data.view(torch.int32)[1, 2] ^= 1 << 21


model.first.register_forward_hook(flip)
model.first.register_full_backward_hook(lambda module, _, outputs: flip_gradient(module, outputs))


def loss_of(called: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    done["calls"] += 1
    loss = functional.mse_loss(called(batch), batch[:, :4].cumsum(1))
    return loss * 2 if run.rank == options.odd else loss


def state() -> str:
    """Return a digest of all that a step depends on."""
    found = [*model.parameters(), *model.buffers(), torch.get_rng_state()]
    for parameter in model.parameters():
        found += [each for _, each in sorted(optimizer.state[parameter].items())]
    plain = [getattr(each, "_local_tensor", each.detach()) for each in found]
    return hashlib.sha256(b"".join(each.contiguous().numpy().tobytes() for each in plain)).hexdigest()[:16]


for now in run.steps(total=options.steps):
    indices = run.sample_indices(len(data), 8)
    parts = (data[indices[:4]], data[indices[4:]])
    if options.accumulated:
        model.set_requires_gradient_sync(False)  # type: ignore[operator]  # of fully_shard
    run.check_compute(loss_of, parts[0])
    total = 0.0
    for part in parts:
        loss = loss_of(run.model, part) / len(parts)
        torch.autograd.backward(loss)
        total += loss.item()
    gradients = [
        None if each.grad is None else getattr(each.grad, "_local_tensor", each.grad) for each in model.parameters()
    ]
    sums = [0.0 if each is None else float(each.sum()) for each in gradients]
    if now % 2:  # so the checked step begins with the gradients of the one before
        optimizer.step()
        optimizer.zero_grad()
    run.report(loss=total)
    print("step", now + 1, repr(total), repr(sums), state(), *indices, flush=True)  # noqa: T201
print("calls", done["calls"], flush=True)  # noqa: T201
run.finish()
