"""Program of ``watch_cost``: a small GPT whose steps take 200 ms of CPU and more. It prints the CPU of each sensor.

The sensor's thread has a CPU clock of its own. The watch over values runs in the main thread, so its methods are timed
by that thread's CPU clock. It prints one line: ``cost`` and JSON.
"""

import functools
import json
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional

from examples.pretrain_gpt import VOCABULARY, Gpt, Shape
from muster import train
from muster.train.values.value_watch import ValueWatch

SHAPE: Final = Shape(layers=4, heads=4, head_dim=32, context=64)
LEAST_STEP_S: Final = 0.25
"""The step's goal, so that it is not below 200 ms in the fastest moment."""
OF_VALUES: Final = ("start", "begin", "note_loss", "note_grad_norm", "end", "figures", "agree", "before_save")
WATCH_THREAD: Final = "muster-watch"
FIRST_STEPS: Final = 3
"""Steps that are not counted: the first one makes the optimizer's state and imports what it needs."""

_spent_s = [0.0]


def timed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, which adds its CPU time to what the watch over values has spent."""

    @functools.wraps(method)
    def run(*words: Any, **named: Any) -> Any:
        began_s = time.thread_time()
        try:
            return method(*words, **named)
        finally:
            _spent_s[0] += time.thread_time() - began_s

    return run


def sensor_s() -> float:
    """Return the CPU time of the sensor's thread."""
    idents = [thread.ident for thread in threading.enumerate() if thread.name == WATCH_THREAD]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident is not None)


def samples_of(model: torch.nn.Module) -> int:
    """Return so many samples that a step takes at least ``LEAST_STEP_S`` of CPU."""
    tokens = torch.randint(VOCABULARY, (8, SHAPE.context))
    least_s = math.inf
    for _ in range(3):
        began_s = time.process_time()
        torch.autograd.backward(functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))
        least_s = min(least_s, time.process_time() - began_s)
    model.zero_grad()
    return max(1, math.ceil(8 * LEAST_STEP_S / least_s))


def main(steps: int) -> None:
    for name in OF_VALUES:
        setattr(ValueWatch, name, timed(getattr(ValueWatch, name)))
    torch.manual_seed(1)
    model = Gpt(SHAPE)
    tokens = torch.randint(VOCABULARY, (samples_of(model), SHAPE.context))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run = train.start(model, optimizer, checkpoint_every=0)
    before = (0.0, 0.0, 0.0)
    for step in run.steps(steps + FIRST_STEPS):
        if step == FIRST_STEPS:
            before = (time.process_time(), sensor_s(), _spent_s[0])
        optimizer.zero_grad()
        loss = functional.cross_entropy(run.model(tokens).flatten(0, 1), tokens.flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        run.report(loss=loss, tokens=tokens.numel())
    whole_s, by_thread_s, by_values_s = (
        now - then for now, then in zip((time.process_time(), sensor_s(), _spent_s[0]), before, strict=True)
    )
    figures = {
        "step_s": (whole_s - by_thread_s - by_values_s) / steps,
        "thread_s": by_thread_s / steps,
        "values_s": by_values_s / steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    run.finish()
    print("cost", json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
