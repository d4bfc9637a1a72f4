"""A tenant's program small enough to run a hundred times: a step takes a millisecond, and uses every kind of chance."""

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from muster import train


def requested() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=lambda text: text if text == "auto" else int(text), default=4)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--crash-at", type=int, default=-1)
    parser.add_argument("--leave-at", type=int, default=-1, help="a step at which it ends, and says nothing of it")
    parser.add_argument("--keep-object", action="store_true", help="a state_dict that cannot be loaded again")
    parser.add_argument("--hang-at", type=int, default=-1, help="a step at which an attempt without a resume waits")
    parser.add_argument("--drawing-state", action="store_true", help="a state_dict that draws random numbers")
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--after", type=Path, help="a file to wait for before the first step")
    parser.add_argument("--linger-at", type=int, default=-1, help="a step within which it reports it and waits")
    parser.add_argument("--evaluate-at", type=int, default=-1, help="a step behind which it evaluates, and waits there")
    parser.add_argument("--meanwhile", type=Path, help="the file that those two wait for")
    parser.add_argument("--tuned", type=float, nargs=2, help="a batch and the learning rate that was tuned for it")
    return parser.parse_args()


class Drawing(torch.optim.lr_scheduler.StepLR):
    def state_dict(self) -> dict[str, Any]:
        torch.rand(1)
        return super().state_dict()


def wait_for(file: Path | None, word: str) -> None:
    print(word, flush=True)  # noqa: T201
    while file is not None and not file.exists():
        time.sleep(0.01)


def evaluate(model: nn.Module, data: torch.Tensor, meanwhile: Path | None) -> None:
    """All ranks together, over and over, as a program does that sums up its losses."""
    model.eval()
    with torch.no_grad():
        for number in range(10):
            if number == 5:
                wait_for(meanwhile, "evaluating")
            total = model(data).sum()
            if dist.is_initialized():
                dist.all_reduce(total)
    model.train()


def of_width(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, width),
        nn.BatchNorm1d(width),
        nn.Dropout(0.3),
        nn.ReLU(),
        nn.Linear(width, 1),
    )


def main() -> None:
    options = requested()
    torch.manual_seed(1)
    model = of_width(options.width)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = (Drawing if options.drawing_state else torch.optim.lr_scheduler.StepLR)(optimizer, 3, gamma=0.9)
    if options.keep_object:
        scheduler.load_state_dict({**scheduler.state_dict(), "mine": options})
    data = torch.randn(64, 4, generator=torch.Generator().manual_seed(3))

    run = train.start(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        extras={"average": average},
        checkpoint_every=options.every,
        asynchronous=not options.synchronous,
        seed=5,
        tuned=train.TunedFor(int(options.tuned[0]), options.tuned[1]) if options.tuned else None,
    )
    while options.after and not options.after.exists():
        time.sleep(0.01)
    began_at: int | None = None
    for step in run.steps(total=options.steps):
        if step == options.crash_at:
            raise ValueError("the program's own fault")
        if step == options.leave_at:
            return
        began_at = step if began_at is None else began_at
        if step == options.hang_at and began_at == 0:
            time.sleep(3600)
        if step == options.linger_at:
            wait_for(options.meanwhile, "lingering")
        indices = run.sample_indices(len(data), 4)
        batch = data[indices]
        loss = functional.mse_loss(run.model(batch), batch.sum(1, keepdim=True))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        scheduler.step()
        average.update_parameters(model)
        if step == options.evaluate_at:
            evaluate(model, data, options.meanwhile)
        run.report(loss=loss)
        own = [random.random(), torch.rand(1).item(), float(model.state_dict()["1.running_mean"].sum())]  # noqa: S311
        alike = [loss.item(), float(average.state_dict()["module.0.weight"].sum())]
        print("step", step + 1, *map(repr, own + alike), *indices, flush=True)  # noqa: T201
        time.sleep(options.sleep)
    run.finish()


if __name__ == "__main__":
    main()
