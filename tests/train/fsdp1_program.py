"""A program under FSDP1: its full weights are alike on all ranks, its optimizer's state is each rank's own."""

import hashlib
import sys

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from muster import train

train.mesh(data=-1)
torch.manual_seed(3)
uses_names = sys.argv[1] == "names"
model = FullyShardedDataParallel(nn.Linear(6, 6), use_orig_params=uses_names, device_id=torch.device("cpu"))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)


def digest() -> str:
    moments = [each for _, state in sorted(optimizer.state_dict()["state"].items()) for each in state.values()]
    found = [*model.parameters(), *moments]
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in found)).hexdigest()


run = train.start(model, optimizer, checkpoint_every=4, data_parallel=False, seed=1, own=sys.argv[2:])
print("begins", run.step, digest(), flush=True)  # noqa: T201
for _ in run.steps(total=6):
    optimizer.zero_grad()
    loss = model(torch.randn(3, 6)).square().mean()
    torch.autograd.backward(loss)
    optimizer.step()
    run.report(loss=loss)
print("ends", run.step, digest(), flush=True)  # noqa: T201
run.finish()
