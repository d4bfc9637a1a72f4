"""Copies that differ: named at the next check, most in ranks that are threads, some in real gloo ranks.

Three threads train one model on real tensors with averaged gradients. Each has the product's own check of replicas;
only the exchange between them is not gloo's. Bits of the mantissa flip, the sign, and the lowest three of the exponent,
which make a value up to 16 times larger or smaller. A higher one soon makes a value that is no number, which is
another fault (``watch_nan``). Live cases are the program of ``tests/train/values``, whose run must end
in the undisturbed run's losses, bit for bit.
"""

import random
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch.nn import functional

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from benchmarks.watch_ranks import zygote
from muster.train.checkpoint.state import Trained
from muster.train.parallel.ranks import Agreement
from muster.train.values.copies import Copies
from muster.train.values.replica_check import ReplicaCheck, ReplicaError
from tests.train.train_case import HERE, Listening, Training

T = TypeVar("T")
WATCHED: Final = HERE / "watched_program.py"
NUM_RANKS: Final = 3
EVERY: Final = 3
"""Steps from check to check."""
STEPS: Final = 24
PLACES: Final = ("parameter", "buffer", "optimizer")
FAULTS: Final = ("bit", "swapped", "dropped")
LIVE: Final = (
    ("bit", 9, 1),
    ("swapped", 10, 2),
    ("cancelling", 11, 0),
    ("dropped", 9, 0),
    ("moment", 10, 2),
    ("buffer", 11, 1),
    ("bit", 13, 0),
    ("dropped", 7, 2),
    ("moment", 14, 1),
)
"""Fault of the live program, step, rank."""
LAST_LIVE_STEP: Final = 16
MANTISSA: Final = range(23)
EXPONENT: Final = range(23, 26)
SIGN: Final = 31
"""Bits of a 32-bit float that flip: one of the mantissa, of the lowest three of the exponent, or the sign."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``clean``: checks of three ranks without a fault."""

    threaded: int
    live: int
    clean: int


SIZES: Final = Sizes(full=Size(threaded=91, live=len(LIVE), clean=1000), smallest=Size(threaded=9, live=1, clean=20))


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in one rank after its optimizer's step ``at``. ``bit``: the one that flips, if one does."""

    what: str
    where: str
    rank: int
    at: int
    bit: int


def measure(size: Size) -> Groups:
    had = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        faults = [_fault(number) for number in range(size.threaded)]
        named = sum(_is_named(fault, number) for number, fault in enumerate(faults))
        alarms = sum(found is not None for found in _outcomes(None, steps=size.clean, every=1))
    finally:
        torch.set_num_threads(had)
    live_named, live_alike = _live(size.live)
    total = size.threaded + size.live
    peers = {"cases": float(total), "live": float(size.live), "live named": float(live_named)}
    flipped = [fault.bit for fault in faults if fault.what == "bit"]
    peers |= {
        "bits of the mantissa": float(sum(bit in MANTISSA for bit in flipped)),
        "bits of the exponent": float(sum(bit in EXPONENT for bit in flipped)),
        "signs": float(flipped.count(SIGN)),
    }
    clean = {"checks": float(size.clean), "ranks": float(NUM_RANKS)}
    share, alike = 100 * (named + live_named) / total, 100 * live_alike / size.live
    live = {"live": float(size.live)}
    yield [
        Figure("corruption: named at the next check", share, "%", 100.0, "higher", peers, basis=Basis.COUNT),
        Figure("corruption: rolled back bit for bit", alike, "%", 100.0, "higher", live, basis=Basis.COUNT),
        Figure("corruption: alarms in clean checks", float(alarms), "", 0.0, peers=clean, basis=Basis.COUNT),
    ]


# --- ranks that are threads


class Exchange:
    """Values of all threads, each of which waits for the others."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(NUM_RANKS, timeout=60)
        self.values: list[Any] = [None] * NUM_RANKS

    def gather(self, rank: int, value: T) -> list[T]:
        self.values[rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


class ThreadRank(Agreement):
    """A rank that is a thread."""

    def __init__(self, rank: int, exchange: Exchange) -> None:
        super().__init__(rank, NUM_RANKS, None)
        self._exchange = exchange

    def gather(self, value: T) -> list[T]:
        return self._exchange.gather(self.rank, value)

    def max(self, values: Any) -> list[int]:
        return [max(each) for each in zip(*self.gather(list(values)), strict=True)]


class Net(torch.nn.Module):
    """A model with a table that never changes, and with statistics that are each rank's own."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Linear(6, 32), torch.nn.BatchNorm1d(32)
        self.last = torch.nn.Linear(32, 1)
        self.register_buffer("table", torch.linspace(0.5, 1.5, 32))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.norm(self.first(values)).relu() * self.table)
        return found


def _is_named(fault: Fault, seed: int) -> bool:
    """Return whether every rank names the culprit of a case, and no other, at the next check."""
    expected = (fault.at + EVERY - 1) // EVERY * EVERY
    outcomes = _outcomes(fault, steps=STEPS, every=EVERY, seed=seed)
    return all(found is not None and (found[0], found[1]) == (expected, (fault.rank,)) for found in outcomes)


def _fault(number: int) -> Fault:
    """Return the fault of a case: each kind in each place comes in turn."""
    rng = random.Random(number)  # noqa: S311  # a case that repeats
    where = PLACES[number % len(PLACES)]
    what = "bit" if where == "buffer" and number % 2 else FAULTS[number // len(PLACES) % len(FAULTS)]
    what = "swapped" if where == "buffer" and what == "dropped" else what
    rank, at = rng.randrange(NUM_RANKS), rng.randrange(4 * EVERY, STEPS - EVERY)
    bit = rng.choice((rng.choice(MANTISSA), rng.choice(EXPONENT), SIGN))
    return Fault(what, where, rank, at, bit)


def _outcomes(
    fault: Fault | None, *, steps: int, every: int, seed: int = 1
) -> list[tuple[int, tuple[int, ...]] | None]:
    """Train on three threads. Return of each rank the check that failed and the ranks that it names; None: none did."""
    exchange = Exchange()
    ranks = [ThreadRank(rank, exchange) for rank in range(NUM_RANKS)]
    made = [_made(seed) for _ in ranks]  # not in the threads, which share one generator
    with ThreadPoolExecutor(NUM_RANKS) as pool:
        found = [
            pool.submit(_trained, rank, trained, fault, steps, every) for rank, trained in zip(ranks, made, strict=True)
        ]
        return [each.result() for each in found]


def _made(seed: int) -> Trained:
    torch.manual_seed(seed)
    model = Net()
    return Trained(model, torch.optim.AdamW(model.parameters(), lr=0.01), None, {})


def _trained(
    rank: ThreadRank, trained: Trained, fault: Fault | None, steps: int, every: int
) -> tuple[int, tuple[int, ...]] | None:
    copies = Copies(trained, trained.model, NUM_RANKS, is_declared=True)
    check = ReplicaCheck(copies, rank, every)
    batches = torch.Generator().manual_seed(rank.rank)
    check.begin(0)
    for step in range(1, steps + 1):
        _step(rank, trained, batches, fault if fault is not None and fault.at == step else None)
        try:
            check.agree(next(rank.max_of(check.figures(step))))
        except ReplicaError as found:
            return found.fault.step, found.fault.ranks
    return None


def _step(rank: ThreadRank, trained: Trained, batches: torch.Generator, fault: Fault | None) -> None:
    """Train one step as DDP does: the gradients are averaged, in the order of the ranks."""
    model, optimizer = trained.model, trained.optimizer
    if optimizer is None:
        raise RuntimeError("it trains without an optimizer")
    values = torch.randn(8, 6, generator=batches)
    optimizer.zero_grad()
    torch.autograd.backward(functional.mse_loss(model(values), values.sum(1, keepdim=True)))
    gradients = rank.gather([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for parameter, alike in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
        parameter.grad = sum(alike[1:], alike[0]) / NUM_RANKS
    is_own = fault is not None and fault.rank == rank.rank
    if fault is not None and is_own and fault.what == "dropped":
        _first(model).grad = torch.zeros_like(_first(model))
    optimizer.step()
    if fault is not None and is_own and fault.what != "dropped":
        _spoil(fault, _target(fault.where, model, optimizer))


def _first(model: torch.nn.Module) -> torch.nn.Parameter:
    found: torch.nn.Parameter = model.get_parameter("first.weight")
    return found


def _target(where: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    if where == "parameter":
        return _first(model).detach()
    if where == "buffer":
        return model.get_buffer("table")
    moment: torch.Tensor = optimizer.state[_first(model)]["exp_avg"]
    return moment


def _spoil(fault: Fault, values: torch.Tensor) -> None:
    """Flip one bit, or swap two elements that differ, at a place that the case draws."""
    rng = random.Random(f"{fault}")  # noqa: S311
    flat = values.view(-1)
    if fault.what == "bit":
        place = rng.randrange(flat.numel())
        flat.view(torch.int32)[place] ^= -(1 << SIGN) if fault.bit == SIGN else 1 << fault.bit
        return
    first, second = next(_unequal(flat, rng))
    flat[first], flat[second] = flat[second].item(), flat[first].item()


def _unequal(flat: torch.Tensor, rng: random.Random) -> Iterator[tuple[int, int]]:
    while True:
        first, second = rng.randrange(flat.numel()), rng.randrange(flat.numel())
        if bool(flat[first] != flat[second]):
            yield first, second


# --- ranks of gloo


def _live(number: int) -> tuple[int, int]:
    """Return how many cases were named at the next check, and how many ended as the undisturbed run."""
    num_named = num_alike = 0
    with tempfile.TemporaryDirectory(prefix="muster-copies-") as name:
        undisturbed = Training(zygote(), Path(name) / "undisturbed").run(num_ranks=NUM_RANKS, program=WATCHED).steps
        for case, (what, at, rank) in enumerate(LIVE[:number]):
            folder = Path(name) / str(case)
            words = (what, "--at", str(at), "--rank", str(rank))
            with (
                Listening(folder / "supervisor") as supervisor,
                closing(Training(zygote(), folder / "job")) as training,
            ):
                socket = str(supervisor.path)
                run = training.start(*words, num_ranks=NUM_RANKS, program=WATCHED, MUSTER_TRAIN_SOCKET=socket)
                codes = run.ended()
            next_check = next(step for step in range(at + 1, LAST_LIVE_STEP + 1) if step % 3 == 0 or step % 4 == 0)
            found = [(each["ranks"], each["step"]) for each in supervisor.received("replica_fault")]
            num_named += found == [([rank], next_check)]
            num_alike += codes == [0] * NUM_RANKS and run.steps == undisturbed
    return num_named, num_alike
