"""The burn-in of one GPU: exact sums, bands, memory, rates. What does not depend on the GPU is made once."""

import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from agents.burn_in.bench import bands, memory, operation, rates
from muster.bench import exact

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a burn-in.

    ``edge``: of the matrices. ``operation_size``: most values of a suspect operation's weight.
    ``memory_share``: of the free memory, at most ``memory_max_bytes``.
    """

    edge: int
    band_inner: int
    rounds: int
    memory_share: float
    memory_max_bytes: int
    chunk_bytes: int
    rate_edge: int
    gemm_s: float
    copy_bytes: int
    copy_rounds: int
    operation_size: int


SMALL: Final = Sizes(
    edge=128,
    band_inner=256,
    rounds=2,
    memory_share=1.0,
    memory_max_bytes=4 * MIB,
    chunk_bytes=MIB,
    rate_edge=128,
    gemm_s=0.005,
    copy_bytes=4 * MIB,
    copy_rounds=2,
    operation_size=1 << 16,
)
"""Sizes for simulated GPUs: the same checks, on a CPU, in some tens of milliseconds."""
FULL: Final = Sizes(
    edge=4096,
    band_inner=4096,
    rounds=20,
    memory_share=0.9,
    memory_max_bytes=1 << 40,
    chunk_bytes=256 * MIB,
    rate_edge=8192,
    gemm_s=1.2,
    copy_bytes=1024 * MIB,
    copy_rounds=10,
    operation_size=1 << 24,
)


def open_device(name: str) -> "Device":
    """Return the device. Raises RuntimeError: there is no such device."""
    if name == "cpu":
        torch.set_num_threads(1)
        return Device(torch.device("cpu"), SMALL, _cpu_library(), exact.CPU_KINDS)
    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no CUDA device here")
    if torch.cuda.get_device_capability() < (8, 0):
        kinds = tuple(kind for kind in exact.CUDA_KINDS if not kind.is_tf32 and kind.name != "bf16")
    else:
        kinds = exact.CUDA_KINDS
    return Device(torch.device("cuda", 0), FULL, f"torch {torch.__version__} cuda {torch.version.cuda}", kinds)


class Device:
    """One device with its prepared problems. ``library``: what ran the GEMMs, so that only equal kinds are compared."""

    def __init__(self, device: torch.device, sizes: Sizes, library: str, kinds: tuple[exact.Kind, ...]) -> None:
        self._device = device
        self._sizes = sizes
        self._library = library
        self._problems = [exact.make_problem(kind, sizes.edge) for kind in kinds]
        self._dtypes = {kind.dtype for kind in kinds}
        names = {kind.name for kind in kinds}
        self._bands = [
            (band, bands.factors(band, sizes.edge, sizes.band_inner))
            for band in bands.BANDS
            if band.name.split(maxsplit=1)[0] in names
        ]

    @torch.inference_mode()
    def burn_in(self, *, is_wrong: bool = False, suspect: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the burn-in and return its figures.

        ``is_wrong``: the simulated fault of a GPU that computes wrong results. ``suspect``: an operation to repeat.
        """
        began = time.monotonic()
        sizes, multiply = self._sizes, _wrong_mm if is_wrong else torch.mm
        sums: list[exact.Sum] = []
        for problem in self._problems:
            torch.backends.cuda.matmul.allow_tf32 = problem.kind.is_tf32
            sums += exact.check(problem, self._device, multiply, sizes.rounds)
        torch.backends.cuda.matmul.allow_tf32 = False
        digests: dict[str, str] = {}
        for band, pair in self._bands:
            digests[band.name], repeats = bands.digest(band, pair, self._device, multiply, sizes.rounds)
            sums.append(repeats)
        if suspect is not None:
            sums += self._check_operation(suspect, multiply)
        num_bytes = self._memory_bytes()
        sums += memory.check(self._device, num_bytes, sizes.chunk_bytes)
        self._give_memory_back()
        found = rates.measure(
            self._device,
            edge=sizes.rate_edge,
            gemm_s=sizes.gemm_s,
            copy_bytes=sizes.copy_bytes,
            rounds=sizes.copy_rounds,
        )
        return {
            "library": self._library,
            "partial_sums": sums,
            "bands": digests,
            "rates": found,
            "memory_bytes": num_bytes,
            "took_s": round(time.monotonic() - began, 3),
        }

    def _check_operation(self, suspect: dict[str, Any], multiply: exact.Multiply) -> list[exact.Sum]:
        """Check a tenant's operation: nothing if this device has no such kind. A sound GPU must not fail by it."""
        if operation.dtype_of(suspect) not in self._dtypes:
            return []
        try:
            return operation.check(suspect, self._device, multiply, self._sizes.rounds, self._sizes.operation_size)
        except RuntimeError as error:  # a broken device fails the checks that follow, too
            sys.stderr.write(f"burn-in: the suspect operation was left out: {str(error)[:500]}\n")
            return []

    def _memory_bytes(self) -> int:
        if self._device.type != "cuda":
            return self._sizes.memory_max_bytes
        self._give_memory_back()
        free, _ = torch.cuda.mem_get_info(self._device)
        return min(int(free * self._sizes.memory_share), self._sizes.memory_max_bytes) // MIB * MIB

    def _give_memory_back(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _wrong_mm(left: Tensor, right: Tensor) -> Tensor:
    """Multiply with one flipped sign bit, of the greatest number: a silent fault."""
    result = torch.mm(left, right)
    flat = result.view(-1)
    worst = flat.abs().argmax()
    flat[worst] = -flat[worst]
    return result


def _cpu_library() -> str:
    """Return the name of the library with the CPU's model: equal bits are guaranteed between equal CPUs only."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    model = next(named, platform.machine())
    return f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()} on {model}"[:128]
