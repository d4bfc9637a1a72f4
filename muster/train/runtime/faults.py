"""Faults on purpose, which show how a training recovers. They are off unless ``MUSTER_TRAIN_FAULTS`` names some.

``KIND@STEP``, ``KIND@STEP-LAST``, ``/RANK`` after it for one rank, ``=VALUE`` at the end; several by spaces:
``kill@120/1``, ``slow@50-80/0=0.4``, ``flip_weight@200``. Without a rank, the seed ``MUSTER_TRAIN_FAULTS_SEED`` chooses
one. Each happens once in a job's life, before the step of that number (from 0). A file in the checkpoint folder records
it, so that a new attempt does not repeat it. If checkpoints are in a store, the file is in the host's checkpoint
folder, and an attempt on another host may repeat the fault. The program's log names each fault.

| kind | what happens | value |
|---|---|---|
| ``kill``, ``stop`` | SIGKILL, SIGSTOP to this rank | |
| ``exception`` | the program raises ``InjectedFaultError`` | |
| ``exit`` | the process ends at once | its code (3) |
| ``hang`` | the rank stops without an end | |
| ``slow`` | each step up to LAST takes longer | seconds (1) |
| ``nan`` | one weight is no number | |
| ``flip_weight`` | one bit of one weight flips | the bit, from 0 (chosen) |
| ``full_disk`` | up to LAST, what a save writes meets ENOSPC | |
| ``flip_file`` | one bit of the newest checkpoint flips on the disk | |
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from muster.train.checkpoint import generations
from muster.train.parallel.shards import local_of
from muster.train.runtime import failpoints

if TYPE_CHECKING:
    from collections.abc import Callable

    from muster.train.runtime.environment import Environment

ENVIRONMENT = "MUSTER_TRAIN_FAULTS"
_FAULT = re.compile(
    r"(?P<kind>[a-z_]+)@(?P<step>\d{1,12})(-(?P<last>\d{1,12}))?(/(?P<rank>\d{1,6}))?(=(?P<value>\d{1,6}(\.\d{1,6})?))?"
)
_FIRED = "faults"
_FULL_DISK = "save.write=ENOSPC"


class InjectedFaultError(RuntimeError):
    """The exception that the fault ``exception`` raises."""


@dataclass(frozen=True)
class Fault:
    """One fault to inject. ``value`` None: the kind's default."""

    text: str
    kind: str
    step: int
    last: int
    rank: int
    value: float | None


def parse(text: str, *, world_size: int, seed: int) -> list[Fault]:
    """Return the faults that ``text`` names. Raises ValueError, with the wrong word and the accepted forms."""
    chance = random.Random(seed)  # noqa: S311  # the same ranks in every attempt
    return [_parsed(word, world_size, chance) for word in text.split()]


def _parsed(word: str, world_size: int, rng: random.Random) -> Fault:
    found = _FAULT.fullmatch(word)
    if found is None or found["kind"] not in _DOING:
        kinds = ", ".join(_DOING)
        raise ValueError(
            f"{ENVIRONMENT}: {word!r} is no fault; one is KIND@STEP[-LAST][/RANK][=VALUE], KIND of {kinds}"
        )
    step, chosen = int(found["step"]), rng.randrange(world_size)
    last, rank = int(found["last"] or step), int(found["rank"] or chosen)
    if last < step:
        raise ValueError(f"{ENVIRONMENT}: {word!r} ends before it begins")
    if rank >= world_size:
        raise ValueError(f"{ENVIRONMENT}: {word!r} names a rank of {world_size}, which count from 0")
    return Fault(word, found["kind"], step, last, rank, None if found["value"] is None else float(found["value"]))


class Faults:
    """The faults of one rank. Call ``meet`` before each step if it ``has_any``."""

    def __init__(self, around: Environment, model: torch.nn.Module) -> None:
        """Read this rank's faults. Raises ValueError for a fault that cannot be read or cannot be injected here."""
        every = parse(around.faults, world_size=around.world_size, seed=around.faults_seed)
        if around.checkpoint_store is not None and any(fault.kind == "flip_file" for fault in every):
            raise ValueError(f"{ENVIRONMENT}: flip_file needs checkpoints in a folder, and they lie in a store")
        self._own = [fault for fault in every if fault.rank == around.rank]
        self._model = model
        self._folder = around.checkpoint_dir
        self._rng = random.Random(around.faults_seed * 1_000_003 + around.rank)  # noqa: S311  # which weight, which bit

    @property
    def has_any(self) -> bool:
        """Whether any fault is to be injected on this rank."""
        return bool(self._own)

    def meet(self, step: int) -> None:
        """Inject each fault that is due before this step."""
        failpoints.disarm(_FULL_DISK)
        for fault in self._own:
            if fault.step <= step <= fault.last and (step > fault.step or self._is_first(fault)):
                self._do(fault, step)

    def _is_first(self, fault: Fault) -> bool:
        """Record the fault and return whether the job meets it for the first time; with a store, on this host alone."""
        if self._folder is None:
            return True
        place = self._folder / _FIRED / fault.text.replace("/", "_")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _do(self, fault: Fault, step: int) -> None:
        sys.stderr.write(f"muster.train: fault on purpose before step {step}: {fault.text}\n")
        sys.stderr.flush()
        _DOING[fault.kind](self, fault)

    def kill(self, _: Fault) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self, _: Fault) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def raise_(self, fault: Fault) -> None:
        raise InjectedFaultError(f"asked for by {ENVIRONMENT}: {fault.text}")

    def exit(self, fault: Fault) -> None:
        os._exit(int(3 if fault.value is None else fault.value))

    def hang(self, _: Fault) -> None:
        while True:
            time.sleep(3600)

    def slow(self, fault: Fault) -> None:
        time.sleep(1.0 if fault.value is None else fault.value)

    def spoil_weight(self, _: Fault) -> None:
        self._weight().fill_(float("nan"))

    def flip_weight(self, fault: Fault) -> None:
        as_bytes = self._weight().view(torch.uint8)
        bits = 8 * as_bytes.numel()
        bit = self._rng.randrange(bits) if fault.value is None else int(fault.value) % bits
        as_bytes[bit // 8] ^= 1 << (bit % 8)

    def fill_disk(self, _: Fault) -> None:
        failpoints.arm(_FULL_DISK)

    def flip_file(self, _: Fault) -> None:
        found = [] if self._folder is None else generations.list_generations(self._folder)
        if self._folder is None or not found:
            return
        path = self._rng.choice(sorted((self._folder / found[0].name).glob("*.pt")))
        with path.open("r+b") as file:
            place = self._rng.randrange(path.stat().st_size)
            file.seek(place)
            (value,) = file.read(1)
            file.seek(place)
            file.write(bytes([value ^ 1 << self._rng.randrange(8)]))

    def _weight(self) -> torch.Tensor:
        """Return one value of one parameter; of a sharded parameter, one value of the piece that this rank has."""
        parameters = [parameter for parameter in self._model.parameters() if parameter.numel()]
        local = local_of(self._rng.choice(parameters))
        # An index at a time: the memory of a parameter may have another order than its indices (channels last).
        return local[tuple(self._rng.randrange(size) for size in local.shape)].view(1)


_DOING: dict[str, Callable[[Faults, Fault], None]] = {
    "kill": Faults.kill,
    "stop": Faults.stop,
    "exception": Faults.raise_,
    "exit": Faults.exit,
    "hang": Faults.hang,
    "slow": Faults.slow,
    "nan": Faults.spoil_weight,
    "flip_weight": Faults.flip_weight,
    "full_disk": Faults.fill_disk,
    "flip_file": Faults.flip_file,
}
