"""A program whose extras differ from rank to rank: it says what each rank has before its first step."""

import argparse
import json
import os
from typing import Any

import torch
from torch import nn

from muster import train


class Seen:
    """How many samples this rank has seen, and the newest of them."""

    def __init__(self) -> None:
        self.newest = torch.zeros(3)
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"newest": self.newest, "count": self.count}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.newest, self.count = state["newest"], state["count"]


class Summed(Seen):
    """As that, and ranks that are fewer or more share what all of them had seen."""

    def load_rank_states(self, states: list[dict[str, Any]]) -> None:
        self.count = sum(state["count"] for state in states)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--summed", action="store_true")
    parser.add_argument("--alike", action="store_true")
    options = parser.parse_args()
    model = nn.Linear(4, 1)
    seen = (Summed if options.summed else Seen)()
    same = torch.optim.swa_utils.AveragedModel(model)
    run = train.start(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        extras={"seen": seen, "same": same},
        checkpoint_every=4,
        seed=5,
    )
    rank = int(os.environ.get("RANK", "0"))
    had: dict[str, Any] | None = None
    for step in run.steps(total=options.steps):
        if had is None:
            had = {"step": step, "count": seen.count, "newest": seen.newest.tolist()}
            print(json.dumps(had), flush=True)  # noqa: T201
        loss = run.model(torch.full((2, 4), 0.1)).square().mean()
        torch.autograd.backward(loss)
        seen.count += 1 if options.alike else rank + 1
        seen.newest = torch.full((3,), float(step if options.alike else 100 * rank + step))
        run.report(loss=loss)
    run.finish()


main()
