"""What it costs that each step's time is told, as a share of a small GPT's step on one core.

The cost is that of the hooks and the word, whatever the model: so it is measured where nearly nothing else is done,
with and without, turn by turn. The least of the rounds counts: the machine's own noise only adds.
"""

import time
from typing import Final

import torch
from torch.nn import functional

from benchmarks.figures import Figure
from examples.pretrain_gpt import VOCABULARY, Gpt, Shape
from muster import train

ROUNDS: Final = 8
TINY_STEPS: Final = 500
GPT_STEPS: Final = 40
SHAPE: Final = Shape(layers=2, heads=4, head_dim=16, context=64)
SAMPLES: Final = 16


def measure() -> list[Figure]:
    torch.manual_seed(1)
    told, untold = (
        min(costs)
        for costs in zip(*((_tiny_us(is_timed=True), _tiny_us(is_timed=False)) for _ in range(ROUNDS)), strict=True)
    )
    step_us = min(_gpt_us() for _ in range(ROUNDS))
    peers = {"told µs": told - untold, "step µs": step_us}
    return [
        Figure("telling where a step's time goes, of the step", (told - untold) / step_us * 100, "%", 1.0, peers=peers)
    ]


def _tiny_us(*, is_timed: bool) -> float:
    model = torch.nn.Linear(1, 1)
    return _step_us(model, torch.ones(1, 1), TINY_STEPS, is_timed=is_timed)


def _gpt_us() -> float:
    return _step_us(Gpt(SHAPE), torch.randint(VOCABULARY, (SAMPLES, SHAPE.context)), GPT_STEPS, is_timed=False)


def _step_us(model: torch.nn.Module, batch: torch.Tensor, steps: int, *, is_timed: bool) -> float:
    """CPU of this process: others on the machine count for nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    run = train.start(model, optimizer, checkpoint_every=0, is_timed=is_timed)
    began = time.process_time()
    for _ in run.steps(steps):
        optimizer.zero_grad()
        loss = functional.mse_loss(out := run.model(batch), torch.zeros_like(out))
        torch.autograd.backward(loss)
        optimizer.step()
        run.report(loss=loss, tokens=batch.numel())
    taken_s = time.process_time() - began
    run.finish()
    return taken_s / steps * 1e6
