"""Image classification by DDP under Muster: a small ResNet distinguishes shapes in pictures that are drawn here.

    muster job submit --follow --gpus 2 -- examples/train_vision.py

Warm-up and cosine of the learning rate continue where they were, and so do each rank's random numbers, from which it
augments its pictures: a resumed run equals an undisturbed one bit for bit on the CPU at the same number of ranks.
"""

from muster import train  # first: it handles a stop while the rest is imported

# isort: split
import argparse
import math
import os
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

SHAPES = ("circle", "square", "triangle", "cross")
SIDE, WIDTHS = 24, (16, 32, 64)
NUM_TRAINED_ON, NUM_TESTED_ON = 4096, 512
NOISE, MOST_SHIFT = 0.1, 2


def drawn(num_images: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy pictures of one shape each, of any size, place, turn and two colours; and which shape it is."""
    chance = torch.Generator().manual_seed(seed)

    def between(low: float, high: float, *size: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(num_images, *size, 1, 1, generator=chance)

    labels = torch.randint(0, len(SHAPES), (num_images,), generator=chance)
    down, right = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    down, right = down - between(-0.2, 0.2), right - between(-0.2, 0.2)
    turn, radius = between(0, 2 * math.pi), between(0.5, 0.75)
    x, y = (turn.cos() * right - turn.sin() * down) / radius, (turn.sin() * right + turn.cos() * down) / radius
    inside = torch.stack(
        (
            x.hypot(y) < 0.9,
            torch.maximum(x.abs(), y.abs()) < 0.8,
            (y < 0.5) & (y > math.sqrt(3) * x.abs() - 1),
            (torch.minimum(x.abs(), y.abs()) < 0.25) & (torch.maximum(x.abs(), y.abs()) < 1),
        )
    )[labels, torch.arange(num_images)]
    around, shade = between(0, 0.5, 3), between(0.5, 1, 3)
    noise = NOISE * torch.randn(num_images, 3, SIDE, SIDE, generator=chance)
    return torch.where(inside[:, None], shade, around) + noise, labels


def augmented(images: torch.Tensor) -> torch.Tensor:
    """Return them mirrored, shifted, lighter or darker: by this rank's own random numbers, which a resume restores."""
    num_images = len(images)
    is_mirrored = torch.rand(num_images, 1, 1, 1) < 0.5
    images = torch.where(is_mirrored, images.flip(-1), images) * (0.8 + 0.4 * torch.rand(num_images, 1, 1, 1))
    shifts = torch.randint(-MOST_SHIFT, MOST_SHIFT + 1, (num_images, 2)).tolist()
    return torch.stack([image.roll(shift, (1, 2)) for image, shift in zip(images, shifts, strict=True)])


def group_norm(width: int) -> nn.Module:
    """Return a norm of each picture by itself: it is the same with any number of pictures a rank, and of ranks."""
    return nn.GroupNorm(width // 4, width)


# BatchNorm has statistics of each rank's own few pictures; SyncBatchNorm has them of all pictures, on GPUs.
NORMS: dict[str, Callable[[int], nn.Module]] = {"group": group_norm, "sync-batch": nn.SyncBatchNorm}


class Residual(nn.Module):
    """Two convolutions with a shortcut (arXiv 1512.03385): half as high and wide, ``width`` channels deep."""

    def __init__(self, before: int, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.shortcut = nn.Conv2d(before, width, 1, stride=2, bias=False)
        self.first = nn.Conv2d(before, width, 3, stride=2, padding=1, bias=False)
        self.first_norm = norm(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = norm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.shortcut(x) + self.second_norm(self.second(inner)))


class ResNet(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False), norm(WIDTHS[0]), nn.ReLU())
        self.blocks = nn.Sequential(*(Residual(*widths, norm) for widths in pairwise((WIDTHS[0], *WIDTHS))))
        self.head = nn.Linear(WIDTHS[-1], len(SHAPES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return logits


def own_device() -> torch.device:
    """Return this rank's GPU among its host's; the CPU if there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def autocast(device: torch.device) -> torch.autocast:
    """Compute convolutions and products in bf16 if the device supports it; it needs no gradient scaler."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda" and torch.cuda.is_bf16_supported())


def accuracy(model: nn.Module, run: train.Run, device: torch.device) -> float:
    """Return the accuracy on pictures that were not trained on: each rank evaluates its share, and all add up."""
    images, labels = (each[run.rank :: run.world_size].to(device) for each in drawn(NUM_TESTED_ON, seed=2))
    model.eval()
    with torch.inference_mode(), autocast(device):
        is_right = model(images.contiguous(memory_format=torch.channels_last)).argmax(1) == labels
    counts = torch.stack((is_right.sum(), torch.tensor(len(labels), device=device)))
    if dist.is_initialized():
        dist.all_reduce(counts)
    num_right, num_all = (int(count) for count in counts)
    return num_right / num_all


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norm", choices=NORMS, default="group", help="sync-batch: on GPUs only")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=15, help="steps in which the learning rate rises")
    parser.add_argument("--batch-size", type=int, default=32, help="pictures a rank")
    parser.add_argument("--checkpoint-every", type=steps_or_auto, default=20)
    options = parser.parse_args()
    if options.norm == "sync-batch" and not torch.cuda.is_available():
        parser.error("--norm sync-batch: torch has it on GPUs only; --norm group is right on both")
    return options


def steps_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def main() -> None:
    options = arguments()
    device = own_device()
    torch.manual_seed(1)
    model = ResNet(NORMS[options.norm]).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's own gap
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rise = LinearLR(optimizer, start_factor=0.1, total_iters=options.warm_up)
    fall = CosineAnnealingLR(optimizer, T_max=max(options.steps - options.warm_up, 1))
    scheduler = SequentialLR(optimizer, [rise, fall], milestones=[options.warm_up])
    images, labels = drawn(NUM_TRAINED_ON, seed=1)

    run = train.start(model, optimizer, scheduler, checkpoint_every=options.checkpoint_every, seed=1)
    for step in run.steps(options.steps):
        chosen = run.sample_indices(len(images), options.batch_size)
        batch = augmented(images[chosen]).to(device, memory_format=torch.channels_last)
        with autocast(device):
            logits = run.model(batch)
        loss = functional.cross_entropy(logits.float(), labels[chosen].to(device))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        scheduler.step()
        run.report(loss=loss)
        print(f"step {step + 1} {loss.item()!r}", flush=True)
    share = accuracy(model, run, device)
    if run.rank == 0:
        print(f"accuracy {share:.3f} on {NUM_TESTED_ON} pictures that were not trained on", flush=True)
    run.finish()


if __name__ == "__main__":
    main()
