"""Cost of a checkpoint for the step that waits for it: ours, torch.save, and torch's own asynchronous checkpoints.

One process, one state: parameters and Adam's moments, on the CPU. Steps are long enough for a write to end before the
next one is due, so what is measured is the copy that training waits for.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from muster import train
from muster.ports import free_port
from muster.train.checkpoint.manifest import MANIFEST

WARM: Final = 1
"""Number of uncounted saves: the first one touches memory, which ours has allocated before, in the background."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size: ``matrices`` of ``width`` × ``width``: the model. ``saves`` of each kind count; ``step_s``: of
    other steps.
    """

    matrices: int
    width: int
    saves: int
    step_s: float


SIZES: Final = Sizes(
    full=Size(matrices=40, width=1024, saves=5, step_s=1.0), smallest=Size(matrices=2, width=64, saves=1, step_s=0.1)
)


def measure(size: Size) -> Groups:
    model, optimizer = _trained(size)
    with tempfile.TemporaryDirectory(prefix="muster-saves-") as name:
        folder = Path(name)
        plain_s = _plain(model, optimizer, folder, size.saves + WARM)
        theirs_s = _of_torch(model, optimizer, folder, size.saves + WARM)
        ours_s, first_s = _ours(model, optimizer, folder / "ours", size, pause_s=4 * plain_s + size.step_s)
    megabytes = 3 * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) / 1e6
    peers = {
        "stall s": ours_s,
        "first stall s": first_s,
        "torch.save s": plain_s,
        "DCP async over torch.save": theirs_s / plain_s,
        "state MB": megabytes,
    }
    name = "checkpoint stall over torch.save"
    yield [Figure(name, ours_s / plain_s, "×", 0.20, peers=peers, basis=Basis.RATIO)]


def _trained(size: Size) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.ModuleList(nn.Linear(size.width, size.width, bias=False) for _ in range(size.matrices))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def _plain(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, times: int) -> float:
    taken_s = []
    for number in range(times):
        path = folder / f"plain-{number}.pt"
        started = time.perf_counter()
        torch.save(_state(model, optimizer), path)
        taken_s.append(time.perf_counter() - started)
        path.unlink()
    return statistics.median(taken_s[WARM:])


def _of_torch(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, times: int) -> float:
    """Return how long ``async_save`` keeps its caller."""
    taken_s = []
    with _group_of_one():
        for number in range(times):
            started = time.perf_counter()
            saving: Any = async_save(_state(model, optimizer), checkpoint_id=folder / f"theirs-{number}")
            taken_s.append(time.perf_counter() - started)
            saving.result()
    return statistics.median(taken_s[WARM:])


@contextmanager
def _group_of_one() -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def _wait_for_disk(folder: Path, step: int) -> None:
    """Wait until this step's checkpoint is committed: a step that waits for the one before would measure the disk."""
    while step > 0 and not any(folder.glob(f"step-{step:08d}/gen-*/{MANIFEST}")):
        time.sleep(0.05)


def _ours(
    model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, size: Size, *, pause_s: float
) -> tuple[float, float]:
    """Return (median of the warm ones, the first) seconds by which a step with a checkpoint is longer."""
    os.environ["MUSTER_CHECKPOINT_DIR"] = str(folder)
    run = train.start(model, optimizer, checkpoint_every=2, keep=1)
    stalls_s: list[float] = []
    ended = time.perf_counter()
    for step in run.steps(total=2 * (size.saves + WARM) + 1):
        if step > 0 and step % 2 == 0:
            stalls_s.append(time.perf_counter() - ended)
        if step % 2 == 0:
            _wait_for_disk(folder, step)
        time.sleep(pause_s if step % 2 == 0 else size.step_s)
        ended = time.perf_counter()
    run.finish()
    del os.environ["MUSTER_CHECKPOINT_DIR"]  # the next measurement must store nothing there
    return statistics.median(stalls_s[WARM:]), stalls_s[0]
