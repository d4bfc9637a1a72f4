"""A program that keeps an average of its model next to it: sharded where the model is, and saved as an extra.

It says what the average is, whole, as it begins and as it ends.
"""

import argparse
import json
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from muster import train


class Average:
    """``num_own``: another on each rank, so that the rest of the state is each rank's own."""

    def __init__(self, model: nn.Module, num_own: int) -> None:
        self.values = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.num_updates = 0
        self.num_own = num_own

    def update(self, model: nn.Module) -> None:
        self.num_updates += 1
        with torch.no_grad():
            for name, value in model.named_parameters():
                self.values[name].lerp_(value.detach(), 0.25)

    def state_dict(self) -> dict[str, Any]:
        own = {"own": self.num_own} if self.num_own else {}
        return {"values": [self.values], "num_updates": self.num_updates, **own}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        for name, value in state["values"][0].items():
            self.values[name].copy_(value)
        self.num_updates, self.num_own = state["num_updates"], state.get("own", 0)

    def whole(self) -> list[float]:
        """Of all ranks together."""
        found: list[float] = []
        for value in self.values.values():
            tensor: Any = value
            found += (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).flatten().tolist()
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layout", choices=("ddp", "fsdp", "hsdp"), default="fsdp")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--synchronous", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1))
    if options.layout != "ddp":
        copies = 2 if options.layout == "hsdp" else 1
        mesh = train.mesh(copies=copies, shards=-1)
        fully_shard(model, mesh=mesh["copies", "shards"] if copies > 1 else mesh["shards"])
    average = Average(model, num_own=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = train.start(
        model=model,
        optimizer=optimizer,
        extras={"average": average},
        checkpoint_every=4,
        asynchronous=not options.synchronous,
        seed=5,
    )
    report(run, average)
    average.num_own = (run.rank + 1) if options.own else 0
    for step in run.steps(total=options.steps):
        loss = run.model(torch.full((2, 5), 0.1 * (step + 1))).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        average.update(model)
        run.report(loss=loss)
    report(run, average)
    run.finish()


def report(run: train.Run, average: Average) -> None:
    said = {"step": run.step, "updates": average.num_updates, "own": average.num_own, "whole": average.whole()}
    print(json.dumps(said), flush=True)  # noqa: T201


main()
