"""GEMMs over small whole numbers: one exact answer on any card, in whatever order the sums are made.

For every result |sum| stays within what its dtype holds exactly, partial sums in that dtype included: 2^8 for bf16,
2^11 for fp16, 2^24 for fp32 (tf32 takes its factors with 11 bits), 2^53 for fp64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

Multiply = Callable[[Tensor, Tensor], Tensor]
Sum = tuple[str, int, int]
"""Name, golden, measured."""

NUM_BANDS: Final = 8
WEIGHT_MAX: Final = 31
SEED: Final = 20_261_121


@dataclass(frozen=True, slots=True)
class Kind:
    """``inner`` factors of at most ``largest`` each: inner · largest² is the bound above."""

    name: str
    dtype: torch.dtype
    inner: int
    largest: int
    is_tf32: bool = False


CPU_KINDS: Final = (
    Kind("fp64", torch.float64, 1024, 255),
    Kind("fp32", torch.float32, 1024, 63),
    Kind("bf16", torch.bfloat16, 256, 1),
    Kind("fp16", torch.float16, 512, 2),
)
CUDA_KINDS: Final = (*CPU_KINDS, Kind("tf32", torch.float32, 1024, 63, is_tf32=True))


@dataclass(frozen=True, slots=True)
class Problem:
    """One GEMM with the weighted sum of each band of its rows, computed in 64-bit integers."""

    kind: Kind
    left: Tensor
    right: Tensor
    weights: Tensor
    golden: tuple[int, ...]


def make_problem(kind: Kind, edge: int) -> Problem:
    """``edge`` rows and columns. Weights of the columns keep two faults from cancelling each other."""
    chance = torch.Generator().manual_seed(SEED)
    left = _whole(chance, (edge, kind.inner), kind.largest)
    right = _whole(chance, (kind.inner, edge), kind.largest)
    weights = torch.randint(1, WEIGHT_MAX + 1, (edge,), generator=chance)
    weighted = right @ weights
    golden = tuple(int((part.sum(0) * weighted).sum()) for part in left.chunk(NUM_BANDS))
    return Problem(kind, left, right, weights, golden)


def check(problem: Problem, device: torch.device, multiply: Multiply, rounds: int) -> list[Sum]:
    """Each band's sum: the exact one, or the first other one that any round gave."""
    left = problem.left.to(device, problem.kind.dtype)
    right = problem.right.to(device, problem.kind.dtype)
    weights = problem.weights.to(device)
    measured = list(problem.golden)
    for _ in range(rounds):
        result = multiply(left, right).double().to(torch.int64)
        for band, part in enumerate(result.chunk(NUM_BANDS)):
            found = int((part * weights).sum())
            if measured[band] == problem.golden[band]:
                measured[band] = found
    names = (f"{problem.kind.name} rows {band + 1}/{NUM_BANDS}" for band in range(len(measured)))
    return list(zip(names, problem.golden, measured, strict=True))


def _whole(rng: torch.Generator, shape: tuple[int, int], largest: int) -> Tensor:
    return torch.randint(-largest, largest + 1, shape, generator=rng)
