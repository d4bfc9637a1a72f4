"""A program that requests its samples as its options say: how often a step, how many on each rank."""

import argparse
import os

import torch

from muster import train

parser = argparse.ArgumentParser()
parser.add_argument("--batches", type=int, nargs="+", default=[4], help="by rank; 0: none; the last for further ranks")
parser.add_argument("--calls", type=int, default=1, help="calls of sample_indices a step")
parser.add_argument("--warm-up", action="store_true", help="calls before the first step")
parser.add_argument("--sharing", type=int, default=1, help="ranks that read the same samples")
options = parser.parse_args()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mesh = train.mesh(data=-1, tensor=options.sharing)["data"] if options.sharing > 1 else None
run = train.start(model, optimizer, checkpoint_every=2, seed=5, data_mesh=mesh)
batch = options.batches[min(int(os.environ["RANK"]), len(options.batches) - 1)]
if options.warm_up:
    for _ in range(2):
        run.sample_indices(64, batch)
for step in run.steps(total=4):
    drawn = [sample for _ in range(options.calls if batch else 0) for sample in run.sample_indices(64, batch)]
    optimizer.zero_grad()
    torch.autograd.backward(run.model(torch.ones(1, 1)).sum())
    optimizer.step()
    run.report(loss=0.0)
    print("step", step + 1, *drawn, flush=True)  # noqa: T201
run.finish()
