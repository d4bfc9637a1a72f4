"""A program whose parameters are each rank's own and no DTensors: stages of like or of unlike names, or experts."""

import argparse
import hashlib
import itertools
from pathlib import Path

import torch
from torch import nn

from muster import train
from muster.train.checkpoint import generations
from muster.train.checkpoint.generations import Generation

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=["stages", "named_stages", "experts", "alike"])
parser.add_argument("--own", nargs="*", default=[])
parser.add_argument("--own-layers", action="store_true", help="each rank names its own layers alone")
parser.add_argument("--fails-first", action="store_true", help="the first save finds a full disk")
parser.add_argument("--places", type=int, default=0)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--every", type=int, default=4, help="steps from one save to the next")
parser.add_argument("--drift-at", type=int, help="the step at which the last rank's first weight changes")
options = parser.parse_args()
mesh = train.mesh(stage=options.places, data=-1)["stage"] if options.places else None
train.mesh(data=-1)
rank = torch.distributed.get_rank()
place = mesh.get_local_rank() if mesh is not None else 0 if options.kind == "alike" else rank
torch.manual_seed(5 if options.kind == "experts" else 100 + place)
first = 2 * place if options.kind == "named_stages" else 0
names = ["router", "expert"] if options.kind == "experts" else [str(first), str(first + 1)]
model = nn.ModuleDict({names[0]: nn.Linear(6, 6)})
torch.manual_seed(100 + place)
model[names[1]] = nn.Linear(6, 6)
optimizer = torch.optim.Adam([each for name, each in model.named_parameters() if "router" not in name], 1e-2)


if options.fails_first:
    prepare, num_tries = generations.prepare, itertools.count()

    def full_at_first(folder: Path, generation: Generation) -> None:
        if next(num_tries) == 0:
            raise OSError("the disk is full")
        prepare(folder, generation)

    generations.prepare = full_at_first


def digest() -> str:
    moments = [
        each for _, state in sorted(optimizer.state_dict()["state"].items()) for _, each in sorted(state.items())
    ]
    found = [*model.parameters(), *moments]
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in found)).hexdigest()


own = names if options.own_layers else options.own
run = train.start(model, optimizer, checkpoint_every=options.every, data_parallel=False, seed=1, own=own, own_mesh=mesh)
print("begins", run.step, digest(), flush=True)  # noqa: T201
for step in run.steps(total=options.steps):
    values = torch.randn(3, 6, generator=torch.Generator().manual_seed(1000 * place + step))
    for layer in model.values():
        values = layer(values)
    optimizer.zero_grad()
    torch.autograd.backward(values.square().mean())
    optimizer.step()
    if step == options.drift_at and rank == torch.distributed.get_world_size() - 1:
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
    run.report(loss=values.square().mean())
print("ends", run.step, digest(), flush=True)  # noqa: T201
run.finish()
