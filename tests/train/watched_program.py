"""A program whose copies or values are spoiled at one step, once: its options state where and when."""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional

from muster import train

parser = argparse.ArgumentParser()
parser.add_argument("what", nargs="?", default="nothing")
parser.add_argument("--at", type=int, default=9)
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--steps", type=int, default=16)
parser.add_argument("--every", type=int, default=4, help="steps from checkpoint to checkpoint")
parser.add_argument("--check", type=lambda text: text if text == "auto" else int(text), default=3)
parser.add_argument("--on-fault", default="stop")
parser.add_argument("--again", action="store_true", help="not once, but each time that step comes")
parser.add_argument("--loader", action="store_true", help="it takes its data from an iterator of its own")
parser.add_argument("--stream", action="store_true", help="its iterator reads a stream of samples")
parser.add_argument("--held", action="store_true", help="it draws a batch of a stream before its first step")
options = parser.parse_args()


class Net(nn.Module):
    """A model with a table that never changes, as masks and positions are."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.register_buffer("table", torch.linspace(0.5, 1.5, 8))
        if options.what == "best":  # a program's own note, frozen so that DDP does not send it
            self.best = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.norm(self.first(values)).relu() * self.table)
        if spoils("activation"):
            found = found * math.nan
        return found


def spoils(what: str) -> bool:
    """Whether this rank does it now; once in a process, if not ``--again``."""
    if what != options.what or now != options.at or run.rank != options.rank or (done and not options.again):
        return False
    done.append(now)
    return True


now = -1
done: list[int] = []
torch.manual_seed(1)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.randn(256, 4, generator=torch.Generator().manual_seed(3))
if options.what == "sample":
    data[options.at] = math.nan  # whenever that sample is drawn
run = train.start(
    model,
    optimizer,
    checkpoint_every=options.every,
    keep=2,
    seed=5,
    on_value_fault=options.on_fault,
    check_replicas_every=options.check,
)
iterator = (
    iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=2)) if options.loader else None
)
numbers = iter(())
if options.stream or options.held:
    stream = run.samples("train", len(data), 4)
    numbered = torch.utils.data.TensorDataset(torch.arange(len(data)))
    numbers = iter(torch.utils.data.DataLoader(numbered, batch_sampler=stream))
    if options.held:
        next(numbers)
for now in run.steps(total=options.steps):
    indices = next(numbers)[0].tolist() if options.stream or options.held else run.sample_indices(len(data), 4)
    batch = data[indices] if iterator is None else next(iterator)[0]
    if spoils("batch"):
        batch = batch * math.nan
    loss = functional.mse_loss(run.model(batch + torch.rand(1) / 100), batch.sum(1, keepdim=True))
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    if spoils("dropped"):
        model.first.weight.grad = torch.zeros(8, 4)
    optimizer.step()
    with torch.no_grad():
        if spoils("bit"):
            model.first.weight.view(torch.int32)[3, 1] ^= 1 << 20
        if spoils("swapped"):
            model.first.weight[2] = model.first.weight[2].flip(0)
        if spoils("cancelling"):
            bits = model.first.weight.view(torch.int32)
            bits[0, 0] ^= 1 << 12
            bits[5, 2] ^= 1 << 12
        if spoils("buffer"):
            model.table[1] += 1.0
        if spoils("best"):
            model.best.fill_(loss.item())
        if spoils("moment"):
            optimizer.state[model.last.weight]["exp_avg_sq"].view(torch.int32)[0, 4] ^= 1 << 22
        if spoils("weight"):
            model.norm.weight[1] = math.nan
        if spoils("last_weight"):
            model.last.weight[0, 1] = math.nan
    run.report(loss=loss)
    words = [repr(loss.item()), repr(float(model.first.weight.detach().sum())), repr(torch.rand(1).item())]
    print("step", now + 1, *words, *indices, flush=True)  # noqa: T201
run.finish()
