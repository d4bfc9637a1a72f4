"""A program in which one value stops being finite, on one rank and at one step."""

import argparse
import math
import os

import torch
from torch import nn

from muster import train

parser = argparse.ArgumentParser()
parser.add_argument("what", nargs="?", default="nothing")
parser.add_argument("--at", type=int, default=9)
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--steps", type=int, default=14)
parser.add_argument("--silent", action="store_true", help="report no loss")
parser.add_argument("--synchronous", action="store_true")
options = parser.parse_args()


class Masked(nn.Module):
    """A model with a mask of infinities and a parameter that is not trained, as programs have them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.full((4,), -math.inf).masked_fill(torch.arange(4) > 0, 0.0))
        self.frozen = nn.Parameter(torch.tensor([math.inf]), requires_grad=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.linear(values))
        return found


torch.manual_seed(1)
model = Masked()
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.01)
average = torch.optim.swa_utils.AveragedModel(model.linear)
run = train.start(
    model,
    optimizer,
    checkpoint_every=4,
    extras={"average": average},
    keep=1,
    seed=5,
    asynchronous=not options.synchronous,
)
for step in run.steps(total=options.steps):
    is_here = step == options.at and run.rank == options.rank
    loss = run.model(torch.randn(4, 4)).square().mean()
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    if is_here and options.what == "gradient":
        model.linear.weight.grad = torch.full((4, 4), math.inf)
    run.clip_grad_norm(1.0)
    if not (step == options.at and options.what == "skipped"):
        optimizer.step()
    average.update_parameters(model.linear)
    with torch.no_grad():
        if step == options.at and options.what == "weight":
            model.linear.weight[0, 0] = math.nan
        if is_here and options.what == "buffer":
            model.state_dict()["norm.running_var"][2] = math.inf
        if step == options.at and options.what == "moment":
            optimizer.state[model.linear.bias]["exp_avg"][1] = -math.inf
        if step == options.at and options.what == "average":
            next(average.module.parameters())[0, 0] = math.nan
    value = math.inf if is_here and options.what == "loss" else loss.item()
    if options.what == "stage" and run.rank == options.rank:
        value = math.nan
    if options.what == "skipped" and step == options.at:
        value = math.nan
    if not options.silent:
        run.report(loss=value)
    print("step", step + 1, os.environ["RANK"], flush=True)  # noqa: T201
run.finish()
