"""Cost of the watch: its CPU time as a share of a step's, and the digest's speed compared with torch's hash.

Two gloo ranks train with the watch and without it, step by step in turn (``watch_cost_program``). The cost is all that
``muster.train`` does for the watch in a step, on both sides of the same run (``watch_cost_switch`` lists it): hooks of
the pace, waits, readings of the host, ticks, the journal, the checks of values and copies, the messages, and the thread
that reports progress. The supervisor's and the host's own work is not in it. The share is of the rank that pays more.
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
HASH_BAR: Final = 0.5
TIMES: Final = 7
ALL: Final = "hooks, waits, host readings, ticks, journal, checks, messages"


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``pairs``: of short steps, with the watch and without; ``values``: of the tensor whose
    digest is taken.
    """

    steps: int
    pairs: int
    values: int


SIZES: Final = Sizes(
    full=Size(steps=60, pairs=800, values=16_000_000), smallest=Size(steps=4, pairs=20, values=1_000_000)
)


def measure(size: Size) -> Groups:
    """Measure. Raises RuntimeError if a rank fails."""
    yield _sensors(size)
    yield [_digest(size)]


def _sensors(size: Size) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="muster-cost-") as name:
        folder = Path(name)
        with (
            Listening(folder / "train") as supervisor,
            Listening(folder / "watch") as watching,
            closing(Training(zygote(), folder / "job")) as training,
        ):
            run = training.start(
                *(str(size.steps), str(size.pairs)),
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
    dearest = max(found, key=lambda each: each["cpu_s"] / each["step_s"])
    peers = {
        "step ms": dearest["step_s"] * 1e3,
        "watch µs a step": dearest["cpu_s"] * 1e6,
        "standard error µs": dearest["error_s"] * 1e6,
        "thread µs a step": dearest["thread_s"] * 1e6,
        "steps between checks": float(dearest["every"]),
        "parameters": float(dearest["parameters"]),
    }
    busiest = max(found, key=lambda each: each["main_s"] / each["step_main_s"])
    of_main = {"step ms": busiest["step_main_s"] * 1e3, "watch µs a step": busiest["main_s"] * 1e6}
    percent, percent_main = (
        100 * dearest["cpu_s"] / dearest["step_s"],
        100 * busiest["main_s"] / busiest["step_main_s"],
    )
    return [
        Figure(f"cost: {ALL}, of a step's CPU", percent, "%", BAR_PERCENT, peers=peers, basis=Basis.RATIO),
        Figure(f"cost: {ALL}, on the main thread", percent_main, "%", BAR_PERCENT, peers=of_main, basis=Basis.RATIO),
    ]


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
