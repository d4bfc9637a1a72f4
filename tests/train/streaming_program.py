"""A program that reads streams of samples: with workers, ahead, several times a step, unequally by rank."""

import argparse
import os
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from muster import train

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--samples", type=int, default=40)
parser.add_argument("--batches", type=int, nargs="+", default=[2], help="one for all ranks, or one a rank")
parser.add_argument("--draws", type=int, default=1, help="batches a step")
parser.add_argument("--fewer", type=int, default=0, help="so many fewer on the last rank at each third step")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--hold", action="store_true", help="hold a batch ahead, from before the first step")
parser.add_argument("--warm-up", action="store_true", help="read some batches first, by an iterator that is dropped")
parser.add_argument("--by-epoch", action="store_true")
parser.add_argument("--no-loader", action="store_true", help="draw from the stream itself")
parser.add_argument("--late", type=int, default=-1, help="a step at which a second stream begins")
parser.add_argument("--loader", default="", help="a fault of the program")
parser.add_argument("--crash-at", type=int, default=-1)
options = parser.parse_args()

rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = train.start(model, optimizer, checkpoint_every=2, asynchronous=False, seed=5)
data = torch.arange(options.samples)


class Rows(Dataset[torch.Tensor]):
    """Samples that are their own numbers."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return data[index]


sizes = options.batches[0] if len(options.batches) == 1 else options.batches
name = f"train {rank}" if options.loader == "names" else "train"
stream = run.samples(name, len(data), sizes, endless=not options.by_epoch)
if options.loader == "sampler":
    loader: DataLoader[torch.Tensor] = DataLoader(Rows(), sampler=stream, batch_size=2)
else:
    in_order = options.loader != "disorder"
    loader = DataLoader(Rows(), batch_sampler=stream, num_workers=options.workers, in_order=in_order)
if options.warm_up:
    for _, _batch in zip(range(3), loader, strict=False):
        pass


def batches_of_loader() -> Iterator[torch.Tensor]:
    """Yield batches without an end: an iterator may end with its epoch."""
    while True:
        yield from loader


batches = None if options.no_loader else batches_of_loader()


def next_batch() -> torch.Tensor:
    """Return this rank's next batch."""
    return data[stream.draw()] if batches is None else next(batches)


ahead = next_batch() if options.hold else None
for step in run.steps(total=options.steps):
    if step == options.crash_at:
        raise ValueError("the program's own fault")
    drawn = []
    is_last = rank == world_size - 1 and step % 3 == 0
    for _ in range(options.draws - (options.fewer if is_last else 0)):
        used, ahead = (ahead, next_batch()) if ahead is not None else (next_batch(), None)
        drawn += used.tolist()
    if 0 <= options.late <= step:
        drawn = run.samples("late", 20, 2, shuffle=False).draw()
    optimizer.zero_grad()
    torch.autograd.backward(run.model(torch.ones(1, 1)).sum())
    optimizer.step()
    run.report(loss=0.0)
    print("step", step + 1, *drawn, flush=True)  # noqa: T201
run.finish()
