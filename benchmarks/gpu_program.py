"""Supervised program of ``runtime_gpu``: the reference GPT in bf16, on the GPUs that it is given.

Each rank writes its results into a file of its own in the folder of its argument, as ``Seen``. On a host without GPUs
it is the same program on the CPU.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed, nn
from torch.nn import functional

from examples.pretrain_gpt import VOCABULARY, Gpt, Shape, shard, work_of
from muster import train
from muster.train.checkpoint.manifest import MANIFEST

SOCKET: Final = "MUSTER_TRAIN_SOCKET"
CHECKPOINTS: Final = "MUSTER_CHECKPOINT_DIR"
SAVE_EVERY: Final = 4
WARM_SAVES: Final = 1
"""Number of uncounted saves: the first one touches memory, which ours has allocated before, in the background."""
_COMMIT_TRIES, _POLL_S = 12_000, 0.05


@dataclass(frozen=True)
class Plan:
    """Plan of a run. ``samples`` of each rank in a step; ``steps`` in each of ``rounds``, reported, and as many
    unreported.

    ``num_saves``: so many checkpoints of each kind; 0: none is made. ``is_deterministic``: with torch's repeatable
    kernels, as programs run by default.
    """

    shape: Shape
    samples: int
    steps: int
    rounds: int
    num_saves: int
    is_deterministic: bool = True

    @classmethod
    def of(cls, text: str) -> "Plan":
        reported = json.loads(text)
        return cls(**{**reported, "shape": Shape(**reported["shape"])})


@dataclass(frozen=True)
class Seen:
    """Results: seconds a step by the clock of the executing side's end. ``gpu``: the product's name, None on
    the CPU.
    """

    gpu: str | None
    reported_step_s: list[float]
    unreported_step_s: list[float]
    stalls_s: list[float]
    plain_saves_s: list[float]
    state_bytes: int


def warm_steps(plan: Plan) -> int:
    """Return the uncounted steps at the begin of each round, in which memory is found and kernels are chosen."""
    return max(2, plan.steps // 4)


class Bench:
    """One rank's model, and the times of its steps."""

    def __init__(self, plan: Plan) -> None:
        has_gpu = torch.cuda.is_available()
        if has_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        self._device = torch.device("cuda" if has_gpu else "cpu")
        # The program's own group outlives each of its runs.
        distributed.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
        torch.manual_seed(1)
        self._plan = plan
        self.model = Gpt(plan.shape).to(self._device)
        self._work = work_of(self.model, plan.shape, recomputes=False)
        self._mesh = train.mesh(shards=-1)
        shard(self.model, self._mesh, is_bf16=True)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        shape = (plan.samples, plan.shape.context + 1)
        self._tokens = torch.randint(VOCABULARY, shape, device=self._device)

    def step_s(self, *, is_reported: bool) -> float:
        """Return the seconds a step of one round, without its first ones.

        ``is_reported``: each step, and the parts of its time, is reported to the supervisor.
        """
        warm = warm_steps(self._plan)
        ended = [
            each for _, each in self._trained(self._plan.steps + warm, is_reported=is_reported, checkpoint_every=0)
        ]
        return (ended[-1] - ended[warm - 1]) / self._plan.steps

    def stalls_s(self, folder: Path) -> list[float]:
        """Return how much longer a step after a checkpoint, copy and all, is than the others."""
        os.environ[CHECKPOINTS] = str(folder)
        num_saves = self._plan.num_saves + WARM_SAVES
        took: dict[int, float] = {}
        before = None
        total = SAVE_EVERY * (num_saves + 1)
        for step, ended in self._trained(total, is_reported=True, checkpoint_every=SAVE_EVERY):
            if before is not None:
                took[step] = ended - before
            _wait_for_commit(folder, step - step % SAVE_EVERY)
            self._wait()
            before = time.perf_counter()
        del os.environ[CHECKPOINTS]
        plain_s = statistics.median(taken for step, taken in took.items() if step % SAVE_EVERY)
        saved = [taken - plain_s for step, taken in took.items() if step % SAVE_EVERY == 0]
        return saved[WARM_SAVES:]

    def plain_saves_s(self, folder: Path) -> list[float]:
        """Return the times of ``torch.save`` of the same state, by each rank of its own part, one after the other."""
        folder.mkdir(parents=True, exist_ok=True)
        path, taken_s = folder / f"plain-{distributed.get_rank()}.pt", []
        for _ in range(self._plan.num_saves + WARM_SAVES):
            self._wait()
            distributed.barrier()
            began = time.perf_counter()
            torch.save(self._state(), path)
            taken_s.append(time.perf_counter() - began)
            path.unlink()
        return taken_s[WARM_SAVES:]

    def state_bytes(self) -> int:
        """Return the bytes of this rank's parameters and moments."""
        moments = [each for state in self._optimizer.state.values() for each in state.values()]
        return sum(_local(each).nbytes for each in [*self.model.parameters(), *moments])

    def product(self) -> str | None:
        return torch.cuda.get_device_name() if self._device.type == "cuda" else None

    def _state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _trained(self, total: int, *, is_reported: bool, checkpoint_every: int) -> Iterator[tuple[int, float]]:
        """Yield each step, and when the executing side had finished it."""
        path = os.environ[SOCKET]
        os.environ[SOCKET] = path if is_reported else ""
        run = train.start(
            self.model,
            self._optimizer,
            data_mesh=self._mesh,
            checkpoint_every=checkpoint_every,
            keep=1,
            deterministic=self._plan.is_deterministic,
            work=self._work,
            is_timed=is_reported,
        )
        os.environ[SOCKET] = path
        for step in run.steps(total):
            self._optimizer.zero_grad()
            loss = self._loss(run.model)
            torch.autograd.backward(loss)
            self._optimizer.step()
            run.report(loss=loss, tokens=self._tokens[:, 1:].numel())  # the loss is read: the step is done
            self._wait()
            yield step, time.perf_counter()
        run.finish()

    def _loss(self, model: nn.Module) -> torch.Tensor:
        logits = model(self._tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), self._tokens[:, 1:].flatten())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    to_local = getattr(tensor, "to_local", None)
    part: torch.Tensor = tensor if to_local is None else to_local()
    return part


def _wait_for_commit(folder: Path, step: int) -> None:
    """Wait until the checkpoint of this step is there: a step that waits for the one before would measure the disk.

    Raises:
        RuntimeError: it does not appear.
    """
    if step == 0:
        return
    for _ in range(_COMMIT_TRIES):
        if any(folder.glob(f"step-{step:08d}/gen-*/{MANIFEST}")):
            return
        time.sleep(_POLL_S)
    raise RuntimeError(f"the checkpoint of step {step} was not committed")


def main(folder: Path, plan: Plan) -> None:
    os.environ.pop(CHECKPOINTS, None)
    bench = Bench(plan)
    reported, unreported = [], []
    for _ in range(plan.rounds):
        reported.append(bench.step_s(is_reported=True))
        unreported.append(bench.step_s(is_reported=False))
    stalls, plain = [], []
    if plan.num_saves:
        plain = bench.plain_saves_s(folder / "plain")
        stalls = bench.stalls_s(folder / "ours")
    seen = Seen(bench.product(), reported, unreported, stalls, plain, bench.state_bytes())
    path = folder / f"seen-{distributed.get_rank()}.json"
    path.write_text(json.dumps(asdict(seen)), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Plan.of(sys.argv[2]))
