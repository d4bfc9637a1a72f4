"""Program of ``watch_cost``: a small GPT of which two runs step in turn, with the watch and without. It prints the CPU.

A step of 200 ms of CPU and more differs by a tenth from the next one on a shared machine, and the watch costs about a
hundredth. So the difference is taken on short steps of the same program, with one short sample: the same model, hooks,
messages and checks. What is paced by the clock comes after as many steps as in the long ones: copies are checked as
often as the long steps chose, and what happens once a second happens once in a second's share of short steps. Before
each step a buffer is filled, since the passes of a long one leave nothing of the watch in the processor's caches. The
sensor's thread works by the clock and not by the step, so its own CPU clock is read over the long steps.

It prints one line: ``cost`` and JSON, whose times are CPU of the whole process and of its main thread.
"""

import contextlib
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

import torch
from torch import distributed
from torch.nn import functional

from benchmarks.watch_cost_switch import is_intact, paused, take_out
from examples.pretrain_gpt import VOCABULARY, Gpt, Shape
from muster import train
from muster.train.report import pace
from muster.train.watch import sensor

SHAPE: Final = Shape(layers=4, heads=4, head_dim=32, context=64)
LEAST_STEP_S: Final = 0.2
"""A shorter step is no step that the bar is about."""
AIMED_STEP_S: Final = 0.25
SHORT: Final = (1, 8)
"""Samples of a short step, and tokens of each."""
COLD_BYTES: Final = 16 << 20
WATCH_THREAD: Final = "muster-watch"
FIRST_STEPS: Final = 3
"""Steps that are not counted: the first one makes the optimizer's state and imports what it needs."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of a step: CPU of the process without the sensor's thread, of its main thread, and of the clock."""

    cpu_s: float
    main_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Long:
    """Long steps: the steps between two checks of copies, and what a step spends.

    ``step`` is without the watch, ``watched_wall_s`` with it; ``thread_s`` is the CPU of the sensor's thread.
    """

    every: int
    step: Spent
    watched_wall_s: float
    thread_s: float


@dataclass(slots=True)
class Trained:
    """A run that steps at each call: ``turn`` ends the step before, begins one, and computes."""

    run: Any
    steps: Iterator[int]
    optimizer: torch.optim.Optimizer

    @classmethod
    def started(cls, num_steps: int, every: int | str, *, is_on: bool) -> "Trained":
        torch.manual_seed(1)
        model = Gpt(SHAPE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        run = train.start(model, optimizer, checkpoint_every=0, check_replicas_every=every, is_timed=is_on)
        if not is_on:
            take_out(run, optimizer)
        return cls(run, run.steps(num_steps), optimizer)

    def turn(self, tokens: torch.Tensor, cold: torch.Tensor) -> Spent:
        """Return what one step spends."""
        cold.add_(1)
        began = time.process_time() - sensor_s(), time.thread_time(), time.monotonic()
        next(self.steps)
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.run.model(tokens).flatten(0, 1), tokens.flatten())
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.run.report(loss=loss, tokens=tokens.numel())
        ended = time.process_time() - sensor_s(), time.thread_time(), time.monotonic()
        return Spent(*(now - then for now, then in zip(ended, began, strict=True)))


def sensor_s() -> float:
    """Return the CPU time of the sensor's thread."""
    idents = [thread.ident for thread in threading.enumerate() if thread.name == WATCH_THREAD]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident is not None)


def samples_of(model: torch.nn.Module) -> int:
    """Return so many samples that a step takes about ``AIMED_STEP_S`` of CPU."""
    tokens = torch.randint(VOCABULARY, (8, SHAPE.context))
    least_s = math.inf
    for _ in range(3):
        began_s = time.process_time()
        torch.autograd.backward(functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))
        least_s = min(least_s, time.process_time() - began_s)
    model.zero_grad()
    return max(1, math.ceil(8 * AIMED_STEP_S / least_s))


@contextlib.contextmanager
def paced(share: float) -> Iterator[None]:
    """Have a second of the watch last that share of one."""
    usual = pace.REPORT_EVERY_S, sensor.REPORT_EVERY_S
    pace.REPORT_EVERY_S, sensor.REPORT_EVERY_S = (each * share for each in usual)  # type: ignore[misc]  # scaled here
    try:
        yield
    finally:
        pace.REPORT_EVERY_S, sensor.REPORT_EVERY_S = usual  # type: ignore[misc]  # as it was


def pairs_of(tokens: torch.Tensor, steps: int, every: int | str, cold: torch.Tensor) -> list[tuple[Spent, Spent]]:
    """Return what each step spends with the watch and without, step by step in turn: a machine changes its speed."""
    without = Trained.started(steps + FIRST_STEPS + 1, every, is_on=False)
    watched = Trained.started(steps + FIRST_STEPS + 1, every, is_on=True)
    found = []
    for number in range(steps + FIRST_STEPS):
        of_turn: dict[bool, Spent] = {}
        for is_on in (True, False) if number % 2 else (False, True):
            with contextlib.nullcontext() if is_on else paused():
                of_turn[is_on] = (watched if is_on else without).turn(tokens, cold)
        found.append((of_turn[True], of_turn[False]))
    if not is_intact(watched.run):
        raise RuntimeError("the run with the watch has lost a part of it")
    return found[FIRST_STEPS:]


def checks_every(tokens: torch.Tensor, steps: int, cold: torch.Tensor) -> tuple[int, Spent, float]:
    """Return the steps between two checks of copies that long steps choose, on the rank that checks most often.

    And what such a step spends, and the CPU of the sensor's thread.
    """
    trained = Trained.started(steps + FIRST_STEPS + 1, "auto", is_on=True)
    checked, spent, thread_s = set(), [], 0.0
    for number in range(steps + FIRST_STEPS):
        if number == FIRST_STEPS:
            thread_s = sensor_s()
        spent.append(trained.turn(tokens, cold))
        checked.add(trained.run._values._replicas.agreed_step)  # noqa: SLF001  # the runtime reports no count
    every = int(least_of_ranks(max(1, (steps + FIRST_STEPS) // len(checked))))
    return every, mean_of(spent[FIRST_STEPS:]), (sensor_s() - thread_s) / steps


def least_of_ranks(value: float) -> float:
    """Return the least of the values that all ranks give."""
    least = torch.tensor([value], dtype=torch.float64)
    distributed.all_reduce(least, distributed.ReduceOp.MIN)
    return least.item()


def long_steps_of(steps: int, cold: torch.Tensor) -> Long:
    """Measure long steps, with more samples each time until no rank's step is below ``LEAST_STEP_S``.

    A shared machine may be slow while the samples are chosen and fast while the steps run.
    """
    num_samples = samples_of(Gpt(SHAPE))
    while True:
        tokens = torch.randint(VOCABULARY, (num_samples, SHAPE.context))
        every, watched, thread_s = checks_every(tokens, steps, cold)
        step = mean_of([off for _, off in pairs_of(tokens, max(1, steps // 4), every, cold)])
        if least_of_ranks(step.cpu_s) >= LEAST_STEP_S:
            return Long(every, step, watched.wall_s, thread_s)
        num_samples = math.ceil(num_samples * max(1.0, AIMED_STEP_S / step.cpu_s))


def mean_of(spent: Sequence[Spent]) -> Spent:
    return Spent(*(statistics.fmean(each) for each in zip(*map(astuple, spent), strict=True)))


def main(long_steps: int, short_steps: int) -> None:
    distributed.init_process_group("gloo")  # the program's own: no run leaves it
    torch.manual_seed(1)
    cold = torch.zeros(COLD_BYTES // 4)
    long = long_steps_of(long_steps, cold)
    short = torch.randint(VOCABULARY, SHORT)
    usual = mean_of([each for pair in pairs_of(short, FIRST_STEPS, long.every, cold) for each in pair])
    with paced(2 * usual.wall_s / long.watched_wall_s):  # a step without the watch follows each one with it
        pairs = pairs_of(short, short_steps, long.every, cold)
    more_s = [on.cpu_s - off.cpu_s for on, off in pairs]
    figures = {
        "step_s": long.step.cpu_s,
        "step_main_s": long.step.main_s,
        "cpu_s": statistics.fmean(more_s) + long.thread_s,
        "main_s": statistics.fmean(on.main_s - off.main_s for on, off in pairs),
        "thread_s": long.thread_s,
        "error_s": statistics.stdev(more_s) / math.sqrt(len(more_s)),
        "every": long.every,
        "parameters": sum(parameter.numel() for parameter in Gpt(SHAPE).parameters()),
    }
    print("cost", json.dumps(figures), flush=True)
    distributed.barrier()
    os._exit(0)  # the runs are not at their ends, and would report that as a fault


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
