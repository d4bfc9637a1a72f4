"""What training costs in floating point operations, and what share of a GPU's peak it reaches: MFU and HFU.

Per token, forward and backward: 6·N + 12·L·H·Q·T (PaLM, arXiv 2204.02311, appendix B), with N the parameters that take
part in matrix products: no input embedding and no norms, but the output head, tied weights once. Counted with all
parameters, a small model comes out 14 % too high. A causal mask needs only half of the attention's product: some count
it (torchtitan), some do not (Megatron), and at 8,192 tokens of an 8 B model the same run reads 1.125 times as high; so
a figure of MFU is told with its convention.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from muster.train.peaks import PEAKS

if TYPE_CHECKING:
    from muster.train.peaks import Peak


class Attention(Enum):
    """Which part of the attention's product over T × T counts."""

    FULL = "full"
    CAUSAL = "causal"


class Recompute(Enum):
    """What the backward pass computes again: it is work of the hardware (HFU) and none of the model (MFU)."""

    NONE = "none"
    FULL = "full"


@dataclass(frozen=True)
class ModelShape:
    """``matmul_params``: N; of a mixture of experts those that are active for a token. ``sequence``: T in tokens."""

    matmul_params: float
    layers: int
    heads: int
    head_dim: int
    sequence: int


@dataclass(frozen=True)
class Work:
    """What a program says of itself, so that its run has an MFU."""

    model: ModelShape
    attention: Attention = Attention.FULL
    recompute: Recompute = Recompute.NONE


@dataclass(frozen=True)
class Utilisation:
    """Shares of the peak, 1.0 being all of it; of one run under one convention of counting."""

    mfu: float
    hfu: float
    flops_per_token: float
    attention: Attention
    recompute: Recompute


def flops_per_token(model: ModelShape, attention: Attention) -> float:
    """Of forward and backward pass, without what is computed again."""
    pairs = 12 * model.layers * model.heads * model.head_dim * model.sequence
    return 6 * model.matmul_params + (pairs if attention is Attention.FULL else pairs / 2)


def utilisation(
    model: ModelShape,
    *,
    tokens_per_s: float,
    num_gpus: int,
    peak_tflops: float,
    attention: Attention = Attention.FULL,
    recompute: Recompute = Recompute.NONE,
) -> Utilisation:
    """``tokens_per_s`` of the whole job, ``peak_tflops`` dense and of one GPU for the type it computes in.

    A full recompute runs each forward pass twice: 4/3 of the model's own work.

    Raises:
        ValueError: no GPU, or no peak.
    """
    if num_gpus < 1 or peak_tflops <= 0:
        raise ValueError(f"{num_gpus} GPUs of {peak_tflops} TFLOP/s can do nothing")
    per_token = flops_per_token(model, attention)
    mfu = tokens_per_s * per_token / (num_gpus * peak_tflops * 1e12)
    hfu = mfu * 4 / 3 if recompute is Recompute.FULL else mfu
    return Utilisation(mfu, hfu, per_token, attention, recompute)


def peak_of(product: str) -> Peak | None:
    """By the driver's exact product name: a likeness proves nothing ("A1000" is no A100, an L40S no L40)."""
    return PEAKS.get(product.strip().removeprefix("NVIDIA ").strip())
