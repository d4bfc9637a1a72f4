"""A suspect operation of a program, repeated: a product of matrices in the shape and kind of its module's weight.

The factors are small whole numbers, scaled to the size of the program's values, so there is one exact answer, which
the CPU computes. A convolution is computed as the product that it is, since other algorithms for it round. Few factors
of a row differ from 0: so no sum needs more bits than its kind holds, however long the row is.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from agents.burn_in.bench.bands import sha256_of
from muster.bench.exact import WEIGHT_MAX, Multiply, Sum

ROWS: Final = 64
_LONGEST: Final = 1 << 16
_SEED: Final = 31_337


@dataclass(frozen=True, slots=True)
class _Kind:
    """``most``: factors of a row that differ from 0, each at most ``largest``. ``exponents``: of the scale."""

    dtype: torch.dtype
    most: int
    largest: int
    exponents: tuple[int, int]


_EXACT_KINDS: Final = {
    "float64": _Kind(torch.float64, 1 << 14, 255, (-60, 60)),
    "float32": _Kind(torch.float32, 4096, 63, (-60, 60)),
    "bfloat16": _Kind(torch.bfloat16, 256, 1, (-60, 60)),
    "float16": _Kind(torch.float16, 512, 2, (-10, 4)),
}


def dtype_of(operation: dict[str, Any]) -> torch.dtype | None:
    """Return the kind of the operation's numbers; None if it is not known here."""
    kind = _EXACT_KINDS.get(operation["dtype"])
    return None if kind is None else kind.dtype


def check(
    operation: dict[str, Any], device: torch.device, multiply: Multiply, rounds: int, most_size: int
) -> list[Sum]:
    """Return the exact sum of the operation's result, and in how many rounds its bits equalled the first round's.

    Nothing if its kind is not known here. ``most_size``: of the weight; a larger one is cut.
    """
    kind = _EXACT_KINDS.get(operation["dtype"])
    if kind is None:
        return []
    num_columns, inner = _shape(operation["shape"], most_size)
    rng = torch.Generator().manual_seed(_SEED)
    left = torch.randint(-kind.largest, kind.largest + 1, (ROWS, inner), generator=rng)
    if inner > kind.most:
        left[:, kind.most :] = 0
        left = left[:, torch.randperm(inner, generator=rng)]
    right = torch.randint(-kind.largest, kind.largest + 1, (inner, num_columns), generator=rng)
    weights = torch.randint(1, WEIGHT_MAX + 1, (num_columns,), generator=rng)
    golden = int((left.double() @ (right.double() @ weights.double())).to(torch.int64).sum())
    exponent = _exponent(operation["magnitude"], kind)
    scaled = torch.ldexp(right.double(), torch.tensor(exponent)).to(device, kind.dtype)
    factors, measured, digests = left.to(device, kind.dtype), golden, list[str]()
    for _ in range(rounds):
        result = multiply(factors, scaled)
        digests.append(sha256_of(result))
        found = _sum_of(result, exponent, weights)
        measured = found if measured == golden else measured
    return [("operation exact", golden, measured), ("operation repeats", rounds, digests.count(digests[0]))]


def _shape(shape: list[int], most_size: int) -> tuple[int, int]:
    """Return columns and inner length of the product, cut to ``most_size`` together."""
    columns, inner = shape[0], math.prod(shape[1:])
    inner = max(1, min(inner, _LONGEST, most_size))
    return max(1, min(columns, most_size // inner)), inner


def _exponent(magnitude: float, kind: _Kind) -> int:
    least, most = kind.exponents
    return 0 if magnitude <= 0 else max(least, min(most, round(math.log2(magnitude))))


def _sum_of(result: Tensor, exponent: int, weights: Tensor) -> int:
    """Return the weighted sum of the whole numbers in the result. A result that is no number gives another sum."""
    numbers = torch.ldexp(result.double(), torch.tensor(-exponent, device=result.device)).cpu()
    bounded = numbers.nan_to_num(0.5, 2.0**31, -(2.0**31)).clamp(-(2.0**31), 2.0**31)
    fractions = int((bounded != bounded.round()).sum())
    return int((bounded.round().to(torch.int64) * weights).sum()) + fractions
