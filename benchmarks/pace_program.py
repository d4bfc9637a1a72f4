"""Supervised program of ``runtime_pace``: with its supervisor's socket and timing, and with neither.

It writes JSON to the file of its argument: µs of this process's CPU a step, both ways, of the GPT and of the listener.
"""

import json
import os
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import torch
from torch.nn import functional

from examples.pretrain_gpt import VOCABULARY, Gpt, Shape
from muster import train

SOCKET: Final = "MUSTER_TRAIN_SOCKET"
BETWEEN_STEPS_S: Final = 0.001
"""Pause between steps, so that the listener receives each step by itself, as from a training with longer steps."""
SHAPE: Final = Shape(layers=2, heads=4, head_dim=16, context=64)
SAMPLES: Final = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run. ``tiny_steps``: reported, and as many unreported, in each of ``rounds``, with nearly no other
    work.
    """

    rounds: int
    tiny_steps: int
    gpt_steps: int


def main(answer: Path, plan: Plan) -> None:
    os.environ.pop("MUSTER_CHECKPOINT_DIR", None)
    path = os.environ[SOCKET]
    listener = listener_of(path)
    torch.manual_seed(1)
    reported, unreported, heard_s = [], [], 0.0
    for _ in range(plan.rounds):
        before_s = cpu_s(listener)
        reported.append(_tiny_us(path, plan.tiny_steps))
        heard_s += cpu_s(listener) - before_s
        unreported.append(_tiny_us(None, plan.tiny_steps))
    figures = {
        "reported_us": min(reported),
        "unreported_us": min(unreported),
        "listener_us": heard_s / (plan.rounds * plan.tiny_steps) * 1e6,
        "step_us": min(_gpt_us(plan.gpt_steps) for _ in range(plan.rounds)),
    }
    answer.write_text(json.dumps(figures), encoding="utf-8")


def listener_of(path: str) -> psutil.Process:
    """Return the process that listens there."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
        credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return psutil.Process(pid)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _tiny_us(path: str | None, steps: int) -> float:
    model = torch.nn.Linear(1, 1)
    return _step_us(model, torch.ones(1, 1), steps, path=path, pause_s=BETWEEN_STEPS_S)


def _gpt_us(steps: int) -> float:
    tokens = torch.randint(VOCABULARY, (SAMPLES, SHAPE.context))
    return _step_us(Gpt(SHAPE), tokens, steps, path=None, pause_s=0)


def _step_us(model: torch.nn.Module, batch: torch.Tensor, steps: int, *, path: str | None, pause_s: float) -> float:
    """Return the CPU of this process: other programs do not count. ``path``: of the socket; None: nothing is
    reported.
    """
    os.environ[SOCKET] = path or ""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    run = train.start(model, optimizer, checkpoint_every=0, is_timed=path is not None)
    began = time.process_time()
    for _ in run.steps(steps):
        optimizer.zero_grad()
        loss = functional.mse_loss(out := run.model(batch), torch.zeros_like(out))
        torch.autograd.backward(loss)
        optimizer.step()
        run.report(loss=loss, tokens=batch.numel())
        time.sleep(pause_s)
    taken_s = time.process_time() - began
    run.finish()
    return taken_s / steps * 1e6


if __name__ == "__main__":
    main(Path(sys.argv[1]), Plan(**json.loads(sys.argv[2])))
