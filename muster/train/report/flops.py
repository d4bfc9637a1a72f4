"""Floating point operations of training, and the share of a GPU's peak that it reaches: MFU and HFU.

Per token, forward and backward: 6·N + 12·L·H·Q·T (PaLM, arXiv 2204.02311, appendix B), with N the parameters that take
part in matrix products: no input embedding and no norms, but the output head, tied weights once. Counted with all
parameters, a small model comes out 14 % too high. A causal mask needs only half of the attention's product: some count
it (torchtitan), some do not (Megatron), and at 8,192 tokens of an 8 B model the same run reads 1.125 times as high; so
a figure of MFU is reported with its convention. Operations that a kernel repeats within itself, as flash attention
does, count in neither MFU nor HFU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from muster.train.report.peaks import PEAKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.train.report.peaks import Dtype, Peak


class Attention(Enum):
    """Part of the attention's product over T × T that counts."""

    FULL = "full"
    CAUSAL = "causal"


class Recompute(Enum):
    """Part that the backward pass computes again: it is work of the hardware (HFU) and not of the model (MFU).

    ``SELECTIVE``: the attention's product alone, as in arXiv 2205.05198; ``FULL``: the whole forward pass.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True)
class ModelShape:
    """Shape of a model for counting operations.

    ``matmul_params``: N; for a mixture of experts, ``active_params``. ``sequence``: T in tokens; if several sequences
    are packed into one, their ``packed_sequence``.
    """

    matmul_params: float
    layers: int
    heads: int
    head_dim: int
    sequence: float


@dataclass(frozen=True)
class Work:
    """Cost of a token as the program states it, from which the run's MFU is computed. ``dtype`` None: the GPU's half
    precision.
    """

    model: ModelShape
    attention: Attention = Attention.FULL
    recompute: Recompute = Recompute.NONE
    dtype: Dtype | None = None


@dataclass(frozen=True)
class Utilisation:
    """Shares of the peak, 1.0 being all of it; of one run under one convention of counting."""

    mfu: float
    hfu: float
    flops_per_token: float
    attention: Attention
    recompute: Recompute


def active_params(always: float, experts: float, *, num_experts: int, top_k: int) -> float:
    """Return the parameters in matrix products that a token of a mixture of experts meets.

    ``always``: the parameters that each token meets, with shared experts and routers; ``experts``: of all the others
    together, each of which gets ``top_k`` of ``num_experts`` tokens.

    Raises:
        ValueError: a token cannot choose so many of so many.
    """
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"top_k must be from 1 to the {num_experts} experts, not {top_k}")
    return always + experts * top_k / num_experts


def packed_sequence(lengths: Sequence[float]) -> float:
    """Return T of packed sequences of these lengths in tokens, none of which sees another: Σ Lᵢ² ÷ Σ Lᵢ, the mean over
    tokens.

    Raises:
        ValueError: there is none, or one without tokens.
    """
    if not lengths or min(lengths) <= 0:
        raise ValueError(f"lengths must be of one sequence or more, each of a token or more, not {list(lengths)}")
    return sum(length * length for length in lengths) / sum(lengths)


def flops_per_token(model: ModelShape, attention: Attention) -> float:
    """Return the operations a token of forward and backward pass, without recomputation."""
    return 6 * model.matmul_params + _pairs(model, attention)


def recomputed_per_token(model: ModelShape, attention: Attention, recompute: Recompute) -> float:
    """Return the operations a token that the backward pass computes again.

    A forward pass is a third of the whole: 2·N + 4·L·H·Q·T.
    """
    again = {
        Recompute.NONE: 0.0,
        Recompute.SELECTIVE: _pairs(model, attention),
        Recompute.FULL: flops_per_token(model, attention),
    }
    return again[recompute] / 3


def _pairs(model: ModelShape, attention: Attention) -> float:
    pairs = 12 * model.layers * model.heads * model.head_dim * model.sequence
    return pairs if attention is Attention.FULL else pairs / 2


def utilisation(
    model: ModelShape,
    *,
    tokens_per_s: float,
    num_gpus: int,
    peak_tflops: float,
    attention: Attention = Attention.FULL,
    recompute: Recompute = Recompute.NONE,
) -> Utilisation:
    """Return MFU and HFU. ``tokens_per_s`` of the whole job; ``peak_tflops``: dense, of one GPU for its type of
    operands.

    Raises:
        ValueError: no GPU, or no peak.
    """
    if num_gpus < 1 or peak_tflops <= 0:
        raise ValueError(f"{num_gpus} GPUs of {peak_tflops} TFLOP/s can do nothing")
    per_token = flops_per_token(model, attention)
    mfu = tokens_per_s * per_token / (num_gpus * peak_tflops * 1e12)
    hfu = mfu * (1 + recomputed_per_token(model, attention, recompute) / per_token)
    return Utilisation(mfu, hfu, per_token, attention, recompute)


def peak_of(product: str) -> Peak | None:
    """Return a GPU's peak by the driver's exact product name: similar names differ ("A1000" is no A100, an L40S no
    L40).
    """
    return PEAKS.get(product.strip().removeprefix("NVIDIA ").strip())
