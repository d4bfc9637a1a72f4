"""Cost of the sensors: their CPU time as a share of a step's, and the digest's speed compared with torch's hash.

Two gloo ranks train with all sensors on: the thread that reports progress, finite values and spikes, and the check of
replicas as often as it chooses (``watch_cost_program``). The share is of the rank that pays more.
"""

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from benchmarks import watch_cost_program
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from benchmarks.watch_ranks import zygote
from muster.train.values import digests
from tests.train.train_case import Listening, Training

PROGRAM: Final = Path(watch_cost_program.__file__)
NUM_RANKS: Final = 2
BAR_PERCENT: Final = 1.0
LEAST_STEP_S: Final = 0.2
"""A shorter step is no step that the bar is about."""
HASH_BAR: Final = 0.5
TIMES: Final = 7


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``values``: of the tensor whose digest is taken."""

    steps: int
    values: int


SIZES: Final = Sizes(full=Size(steps=60, values=16_000_000), smallest=Size(steps=2, values=1_000_000))


def measure(size: Size) -> Groups:
    """Measure. Raises RuntimeError if a rank fails, or its steps are shorter than the bar is about."""
    yield [_sensors(size)]
    yield [_digest(size)]


def _sensors(size: Size) -> Figure:
    with tempfile.TemporaryDirectory(prefix="muster-cost-") as name:
        folder = Path(name)
        with (
            Listening(folder / "train") as supervisor,
            Listening(folder / "watch") as watching,
            closing(Training(zygote(), folder / "job")) as training,
        ):
            run = training.start(
                str(size.steps),
                num_ranks=NUM_RANKS,
                program=PROGRAM,
                MUSTER_TRAIN_SOCKET=str(supervisor.path),
                MUSTER_WATCH_SOCKET=str(watching.path),
                MUSTER_CHECKPOINT_DIR="",
            )
            codes = run.ended()
        if codes != [0] * NUM_RANKS or not watching.received("progress"):
            raise RuntimeError(f"ranks ended with {codes}: {run.ranks[0].errors[-2000:]}")
        found = [json.loads(rank.output.partition("cost ")[2]) for rank in run.ranks]
    if any(each["step_s"] < LEAST_STEP_S for each in found):
        steps_s = ", ".join(f"{each['step_s']:.3f}" for each in found)
        raise RuntimeError(f"steps of {steps_s} s of CPU; at least {LEAST_STEP_S} s are needed")
    dearest = max(found, key=lambda each: (each["thread_s"] + each["values_s"]) / each["step_s"])
    percent = 100 * (dearest["thread_s"] + dearest["values_s"]) / dearest["step_s"]
    peers = {
        "step ms": dearest["step_s"] * 1e3,
        "thread µs a step": dearest["thread_s"] * 1e6,
        "values µs a step": dearest["values_s"] * 1e6,
        "parameters": float(dearest["parameters"]),
    }
    return Figure("cost: sensors, of a step's CPU", percent, "%", BAR_PERCENT, peers=peers, basis=Basis.RATIO)


def _digest(size: Size) -> Figure:
    had = torch.get_num_threads()
    torch.set_num_threads(1)
    values = torch.randn(size.values)
    pairs = []
    try:
        for _ in range(TIMES):  # turn by turn: a shared machine changes its speed
            ours = _cpu_s(lambda: digests.digest_of(values))
            pairs.append((ours, _cpu_s(lambda: torch.hash_tensor(values).item())))
    finally:
        torch.set_num_threads(had)
    ours, theirs = (min(each) for each in zip(*pairs, strict=True))
    gigabytes = values.numel() * values.element_size() / 1e9
    peers = {"GB/s": gigabytes / ours, "hash_tensor GB/s": gigabytes / theirs}
    name = "cost: digest, of hash_tensor's speed"
    return Figure(name, theirs / ours, "×", HASH_BAR, "higher", peers, basis=Basis.RATIO)


def _cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s
