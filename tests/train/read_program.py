"""A model of some megabytes in one of two layouts, that says how much its process read to resume."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from muster import train

WIDTH = 512


def num_read() -> int:
    """Bytes that this process has asked the kernel to read, of files of whatever kind."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def main() -> None:
    layout, num_steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    if layout == "fsdp":
        mesh = train.mesh(shards=-1)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    before = num_read()
    run = train.start(model, optimizer, checkpoint_every=2)
    after = num_read()
    for step in run.steps(total=num_steps):
        loss = run.model(torch.ones(2, WIDTH) * step).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        run.report(loss=loss)
        print("step", step + 1, after - before, repr(loss.item()), flush=True)  # noqa: T201
    run.finish()


if __name__ == "__main__":
    main()
