"""Known sums on GPUs for a few seconds, before a job starts on them.

Says one JSON line a GPU on stdout, at the end: its uuid with the sums that came out wrong, each with the exact and the
first other answer; or one line with ``fault``: why there are none. The process that starts it puts Muster's folder on
the path.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from muster.bench import exact

CPU_EDGE: Final = 64
CUDA_EDGE: Final = 4096
SLACK_S: Final = 60
"""A process that hangs in the driver ends itself so long after its time, unless another process ended it before."""


def main() -> None:
    """``python -c START ROOT cpu|cuda SECONDS UUID...``; of real GPUs it sees those and no others, in that order."""
    kind, seconds, uuids = sys.argv[2], float(sys.argv[3]), sys.argv[4:]
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library that prints must not spoil the lines
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the process that started it
    signal.alarm(int(seconds) + SLACK_S)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    try:
        for line in _checked(kind, seconds, uuids):
            lines.write(json.dumps(line) + "\n")
    except (ImportError, RuntimeError) as fault:
        lines.write(json.dumps({"fault": f"{type(fault).__name__}: {fault}"}) + "\n")
    lines.flush()


def _checked(kind: str, seconds: float, uuids: Sequence[str]) -> list[dict[str, Any]]:
    import torch  # noqa: PLC0415  # the one thing that may be missing here

    from muster.bench import exact  # noqa: PLC0415  # it imports torch

    if kind == "cpu":
        torch.set_num_threads(1)
        return check(uuids, [torch.device("cpu")] * len(uuids), exact.CPU_KINDS, CPU_EDGE, torch.mm, seconds)
    if torch.cuda.device_count() < len(uuids):
        raise RuntimeError(f"torch {torch.__version__} sees {torch.cuda.device_count()} of {len(uuids)} GPUs")
    devices = [torch.device("cuda", index) for index in range(len(uuids))]
    kinds = exact.CPU_KINDS if torch.cuda.get_device_capability() >= (8, 0) else exact.CPU_KINDS[:2]
    return check(uuids, devices, kinds, CUDA_EDGE, torch.mm, seconds)


def check(
    uuids: Sequence[str],
    devices: "Sequence[torch.device]",
    kinds: "Sequence[exact.Kind]",
    edge: int,
    multiply: "exact.Multiply",
    seconds: float,
) -> list[dict[str, Any]]:
    """Round after round on each GPU until the time is over, at least one on each; a GPU that has erred is done."""
    from muster.bench import exact  # noqa: PLC0415  # it imports torch

    problems = [exact.make_problem(kind, edge) for kind in kinds]
    wrong: dict[str, list[exact.Sum]] = {uuid: [] for uuid in uuids}
    until = time.monotonic() + seconds
    is_first = True
    while is_first or time.monotonic() < until:
        for uuid, device in zip(uuids, devices, strict=True):
            if not wrong[uuid]:
                sums = [each for problem in problems for each in exact.check(problem, device, multiply, 1)]
                wrong[uuid] = [each for each in sums if each[1] != each[2]]
        is_first = False
        if all(wrong.values()):
            break
    return [{"gpu": uuid, "wrong": found} for uuid, found in wrong.items()]
