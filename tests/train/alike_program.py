"""A tenant's program that shuffles with one seed on all ranks: each trains on what the others train on."""

import torch
from torch import nn
from torch.nn import functional

from muster import train


def main() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 4, generator=torch.Generator().manual_seed(3))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(4)).tolist()
    run = train.start(model, optimizer, checkpoint_every=0)
    for step in run.steps(3):
        batch = data[order[4 * step : 4 * step + 4]]
        loss = functional.mse_loss(run.model(batch), batch.sum(1, keepdim=True))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        run.report(loss=loss)
    run.finish()


if __name__ == "__main__":
    main()
