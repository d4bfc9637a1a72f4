"""The process that computes: one request on stdin, one JSON line a GPU on stdout as soon as it is done.

Request: ``{"device": "cpu" | "cuda", "deadline_s": 900, "gpus": [{"uuid": "GPU-…", "is_wrong": false,
"operation": null}]}``. Line: the GPU's uuid with its figures, or with ``fault``: why there are none.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any, TextIO


def main() -> None:
    """Run the request. The output of a library that prints goes to stderr, since it must not spoil the lines."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    _end_with_the_agent(request["deadline_s"])
    if request["device"] == "cpu":
        os.nice(5)  # a simulated GPU takes nothing from other programs on this machine
        os.environ["OMP_NUM_THREADS"] = "1"
    else:
        # cuBLAS repeats its bits only with a workspace of fixed size.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    try:
        import torch  # noqa: F401, PLC0415  # the one thing that may be missing here
    except ImportError as error:
        _report_for_all(lines, request, f"torch cannot be imported by {sys.executable}: {error}")
        return
    from agents.burn_in.bench import program  # noqa: PLC0415  # it imports torch

    try:
        device = program.open_device(request["device"])
    except RuntimeError as error:
        _report_for_all(lines, request, str(error))
        return
    for gpu in request["gpus"]:
        _report(lines, {"gpu": gpu["uuid"], **_measured(device, gpu)})


def _end_with_the_agent(deadline_s: float) -> None:
    """End this process when the agent ends, even if it was killed, and at the latest a while after the deadline."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.alarm(int(deadline_s) + 30)


def _measured(device: Any, gpu: dict[str, Any]) -> dict[str, Any]:
    """Return the GPU's figures or its fault: a driver's error on one GPU concerns no other."""
    try:
        figures: dict[str, Any] = device.burn_in(is_wrong=gpu.get("is_wrong", False), suspect=gpu.get("operation"))
    except RuntimeError as error:
        return {"fault": f"{type(error).__name__}: {error}"}
    return figures


def _report_for_all(lines: TextIO, request: dict[str, Any], fault: str) -> None:
    for gpu in request["gpus"]:
        _report(lines, {"gpu": gpu["uuid"], "fault": fault})


def _report(lines: TextIO, line: dict[str, Any]) -> None:
    lines.write(json.dumps(line) + "\n")
    lines.flush()
