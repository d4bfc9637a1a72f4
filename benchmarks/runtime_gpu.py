"""The reference GPT in bf16 on GPUs: MFU, the cost of a checkpoint for a step, and the cost of reporting each step.

It is a program of a real supervisor (``gpu_program``), on one GPU, and on all if the host has more. MFU is the run's
own report, after a first second that does not count; its peers have the clock's value. The overhead is the clock's:
while the GPU is behind its program, work of the host's CPU costs nothing. Of each figure that rounds repeat the least
counts.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from agents.probes.nvml import open_nvml_probe
from benchmarks.figures import Basis, Figure, Groups, NothingToMeasureError
from benchmarks.gpu_program import Plan, warm_steps
from benchmarks.sizes import Sizes
from examples.pretrain_gpt import Gpt, Shape, work_of
from muster.train.report.flops import Attention, ModelShape, flops_per_token, peak_of, utilisation

ROOT: Final = Path(__file__).resolve().parents[1]
STALL_BAR: Final = 0.20
OVERHEAD_BAR_PERCENT: Final = 1.0
_GIB: Final = 1 << 30
_LARGE: Final = Shape(layers=24, heads=16, head_dim=128, context=2048)
_SMALL: Final = Shape(layers=12, heads=8, head_dim=128, context=1024)
SAVES: Final = Plan(_SMALL, samples=8, steps=0, rounds=0, num_saves=3)
"""Checkpoints of 1.8 GB: the large model's take minutes on the disk of a virtual machine, and a stall over
``torch.save`` is a ratio that does not depend on the size."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``plan`` None: by the memory of the GPU."""

    plan: Plan | None


SIZES: Final = Sizes(full=Size(None), smallest=Size(Plan(Shape(), samples=2, steps=4, rounds=1, num_saves=1)))


def measure(size: Size) -> Groups:
    """Measure. Raises NothingToMeasureError if there is no GPU, or none with memory for a model worth measuring."""
    if not torch.cuda.is_available():
        raise NothingToMeasureError("torch sees no CUDA device on this machine")
    if size.plan is not None:
        yield Stage(1, has_gpu=True).figures(size.plan)
        return
    pace = pace_plan(_memory_bytes())
    for num_gpus in sorted({1, torch.cuda.device_count()}):
        stage = Stage(num_gpus, has_gpu=True)
        yield stage.figures(pace)
        yield stage.figures(replace(pace, rounds=1, is_deterministic=False))
        yield stage.figures(SAVES)


def _memory_bytes() -> int:
    """Return the memory of the smallest GPU, by NVML.

    torch would open a context here, and the supervisor would then rightly find a process that is left on the GPU.
    """
    with closing(open_nvml_probe()) as probe:
        return min(gpu.memory_bytes or 0 for gpu in probe.identify().gpus)


def pace_plan(memory_bytes: int) -> Plan:
    """Return the larger GPT that fits: of 1.2 or 0.15 thousand million parameters, at 16 bytes each and their
    activations.

    Raises:
        NothingToMeasureError: neither does.
    """
    if memory_bytes >= 70 * _GIB:
        return Plan(_LARGE, samples=8, steps=16, rounds=3, num_saves=0)
    if memory_bytes >= 14 * _GIB:
        return Plan(_SMALL, samples=8, steps=40, rounds=3, num_saves=0)
    raise NothingToMeasureError(f"its GPU has {memory_bytes / _GIB:.1f} GiB of memory; 14 are needed")


@dataclass(frozen=True)
class Stage:
    """One supervised program of ``num_ranks`` ranks, a GPU each, or on the CPU."""

    num_ranks: int
    has_gpu: bool

    def figures(self, plan: Plan) -> list[Figure]:
        """Return the figures. Raises RuntimeError if the program failed, or a reported step did not arrive."""
        with tempfile.TemporaryDirectory(prefix="muster-gpu-") as name:
            folder = Path(name)
            seen = self._seen(folder, plan)
            words = list(_words(folder))
        self._require_received(words, plan)
        return [*self._pace(seen, words, plan), *self._overhead(seen, plan), *self._stall(seen, plan)]

    def _seen(self, folder: Path, plan: Plan) -> list[dict[str, Any]]:
        """Return each rank's results."""
        command = [sys.executable, "-m", "muster", "run", "--ranks", str(self.num_ranks), "--max-restarts", "0"]
        command += ["--gpus", str(self.num_ranks if self.has_gpu else 0)]
        command += ["--folder", str(folder / "run"), "--env", f"PYTHONPATH={ROOT}"]
        command += [str(ROOT / "benchmarks/gpu_program.py"), str(folder), json.dumps(asdict(plan))]
        environment = dict(os.environ) if self.has_gpu else {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603  # our own module
        if ended.returncode != 0:
            raise RuntimeError(ended.stdout[-4000:] + ended.stderr[-4000:])
        paths = [folder / f"seen-{rank}.json" for rank in range(self.num_ranks)]
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def _require_received(self, words: list[dict[str, Any]], plan: Plan) -> None:
        """Require that all reports arrived, else the figure is not the cost of reporting."""
        heard = sum(word["type"] == "step" for word in words)
        told = self.num_ranks * plan.rounds * (plan.steps + warm_steps(plan))
        if heard < told:
            raise RuntimeError(f"the supervisor received {heard} steps, and at least {told} were reported")

    def _named(self, what: str) -> str:
        return f"GPT in bf16, {self.num_ranks} {'GPUs' if self.num_ranks > 1 else 'GPU'}: {what}"

    def _pace(self, seen: list[dict[str, Any]], words: list[dict[str, Any]], plan: Plan) -> Iterator[Figure]:
        """Yield MFU if the GPU's peak is known; else its rate. ``work.attention``: all of T × T counts."""
        if not plan.rounds:
            return
        step_s = max(min(each["reported_step_s"]) for each in seen)
        model = _shape_of(plan)
        tokens_per_s = self.num_ranks * plan.samples * plan.shape.context / step_s
        teraflops = tokens_per_s * flops_per_token(model, Attention.FULL) / self.num_ranks / 1e12
        peers = {"tokens/s": tokens_per_s, "step ms": step_s * 1e3, "parameters M": model.matmul_params / 1e6}
        free = "" if plan.is_deterministic else ", without repeatable kernels"
        yield Figure(
            self._named(f"TFLOP/s a GPU{free}"), teraflops, "TFLOP/s", None, "higher", peers, basis=Basis.COUNT
        )
        product = seen[0]["gpu"]
        peak = None if product is None else peak_of(product)
        told = [word["mfu"] for word in words if word["type"] == "pace" and word.get("mfu") is not None]
        if peak is None or not told:
            return
        by_clock = utilisation(model, tokens_per_s=tokens_per_s, num_gpus=self.num_ranks, peak_tflops=peak.tflops)
        beside = {"by the clock %": by_clock.mfu * 100, "peak TFLOP/s": peak.tflops, "reports": float(len(told))}
        share = statistics.median(told) * 100
        yield Figure(self._named(f"MFU as reported{free}"), share, "%", None, "higher", beside, basis=Basis.RATIO)

    def _overhead(self, seen: list[dict[str, Any]], plan: Plan) -> Iterator[Figure]:
        if not plan.rounds or not plan.is_deterministic:
            return
        reported, unreported = (
            max(min(each[name]) for each in seen) for name in ("reported_step_s", "unreported_step_s")
        )
        peers = {"reported ms": reported * 1e3, "unreported ms": unreported * 1e3}
        share = (reported - unreported) / unreported * 100
        name = self._named("reports of each step, of its time")
        yield Figure(name, share, "%", OVERHEAD_BAR_PERCENT, peers=peers, basis=Basis.RATIO)

    def _stall(self, seen: list[dict[str, Any]], plan: Plan) -> Iterator[Figure]:
        """Yield the slowest rank's stall, since all wait for it."""
        if not plan.num_saves:
            return
        stall_s, plain_s = (
            max(statistics.median(each[name]) for each in seen) for name in ("stalls_s", "plain_saves_s")
        )
        megabytes = sum(each["state_bytes"] for each in seen) / 1e6
        peers = {"stall s": stall_s, "torch.save s": plain_s, "state MB": megabytes}
        name = self._named("checkpoint stall over torch.save")
        yield Figure(name, stall_s / plain_s, "×", STALL_BAR, peers=peers, basis=Basis.RATIO)


def _shape_of(plan: Plan) -> ModelShape:
    """Return the shape for a token's cost, counted without a model in memory."""
    with torch.device("meta"):
        return work_of(Gpt(plan.shape), plan.shape, recomputes=False).model


def _words(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the messages that the supervisor received."""
    for path in folder.glob("run/attempts/*/train.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)["message"]
