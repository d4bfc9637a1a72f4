"""Rates of a GPU: GEMM in TFLOP/s by dtype, copies in GB/s. The best of a few rounds, since noise only slows."""

import time
from collections.abc import Callable

import torch


def measure(device: torch.device, *, edge: int, copy_bytes: int, rounds: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        left = torch.ones((edge, edge), dtype=dtype, device=device)
        seconds = _best(device, rounds, lambda factor=left: torch.mm(factor, factor))  # type: ignore[misc]  # bound at once
        found[f"gemm_{name}_tflops"] = _rounded(2 * edge**3 / seconds / 1e12)
    return found | _copies(device, copy_bytes, rounds)


def _copies(device: torch.device, num_bytes: int, rounds: int) -> dict[str, float]:
    on_host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there, beside = torch.empty_like(on_host, device=device), torch.empty_like(on_host, device=device)
    ways: dict[str, Callable[[], object]] = {"copy_device_gb_per_s": lambda: beside.copy_(there)}
    if device.type == "cuda":
        ways["copy_to_device_gb_per_s"] = lambda: there.copy_(on_host, non_blocking=True)
        ways["copy_to_host_gb_per_s"] = lambda: on_host.copy_(there, non_blocking=True)
    return {name: _rounded(num_bytes / _best(device, rounds, copy) / 1e9) for name, copy in ways.items()}


def _best(device: torch.device, rounds: int, work: Callable[[], object]) -> float:
    work()
    return min(_seconds(device, work) for _ in range(rounds))


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return max(time.perf_counter() - began, 1e-9)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
