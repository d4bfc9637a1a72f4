"""GEMMs over random numbers of one magnitude: no exact answer, but equal hardware and libraries give equal bits.

The factors are whole numbers scaled by powers of two, so that every host makes the same ones to the last bit, whatever
its CPU's vector unit does with logarithms.
"""

import ctypes
import hashlib
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from muster.bench.exact import Multiply, Sum

SEED: Final = 57_005
SPREAD: Final = 4
"""Powers of two within one band."""


@dataclass(frozen=True, slots=True)
class Band:
    name: str
    dtype: torch.dtype
    exponent: int


BANDS: Final = (
    *(Band(f"fp32 2^{exponent}", torch.float32, exponent) for exponent in (-30, 0, 30)),
    *(Band(f"bf16 2^{exponent}", torch.bfloat16, exponent) for exponent in (-30, 0, 30)),
    Band("fp16 2^0", torch.float16, 0),
    Band("fp64 2^0", torch.float64, 0),
)


def factors(band: Band, edge: int, inner: int) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(SEED + band.exponent)
    return _random(chance, (edge, inner), band), _random(chance, (inner, edge), band)


def digest(
    band: Band, pair: tuple[Tensor, Tensor], device: torch.device, multiply: Multiply, rounds: int
) -> tuple[str, Sum]:
    """Return the SHA-256 of the result's bits, and in how many rounds they equalled the first round's."""
    left, right = pair[0].to(device), pair[1].to(device)
    found = [sha256_of(multiply(left, right)) for _ in range(rounds)]
    return found[0], (f"{band.name} repeats", rounds, found.count(found[0]))


def _random(rng: torch.Generator, shape: tuple[int, int], band: Band) -> Tensor:
    """Return a random matrix of the band. Rounding to its dtype is exact arithmetic, and the same everywhere."""
    fraction = torch.randint(-(1 << 23), 1 << 23, shape, generator=rng).double() / (1 << 23)
    low = band.exponent - SPREAD // 2
    powers = torch.randint(low, low + SPREAD + 1, shape, generator=rng)
    return torch.ldexp(fraction, powers).to(band.dtype)


def sha256_of(result: Tensor) -> str:
    """Return the SHA-256 of a result's bits."""
    on_host = result.contiguous().cpu()
    num_bytes = on_host.numel() * on_host.element_size()
    return hashlib.sha256((ctypes.c_char * num_bytes).from_address(on_host.data_ptr())).hexdigest()
