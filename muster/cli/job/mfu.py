"""``muster mfu`` computes the share of its GPUs' peak that a training run reaches, with the convention of counting."""

import math
from typing import Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import AsJson, AsYaml, Format, Page, Wide, show
from muster.train.report.flops import (
    Attention,
    ModelShape,
    Recompute,
    Utilisation,
    active_params,
    packed_sequence,
    peak_of,
    utilisation,
)
from muster.train.report.peaks import PEAKS, Dtype

_UNBELIEVABLE: Final = 1.0


Params = Annotated[
    float,
    typer.Option(
        min=1,
        help="Parameters in matrix products that each token meets: with the output head, without the embedding; "
        "of a mixture of experts with routers and shared experts.",
    ),
]
Lengths = Annotated[
    str | None, typer.Option(help="Instead, tokens of each of the sequences that are packed into one: 4096,3072,1024.")
]
ExpertParams = Annotated[
    float | None, typer.Option(min=1, help="Parameters of all experts of which a token meets some, of all layers.")
]
NumExperts = Annotated[int | None, typer.Option("--experts", min=1, help="Experts of a layer.")]
TopK = Annotated[int | None, typer.Option(min=1, help="Experts that a token meets in a layer.")]
Model = Annotated[str | None, typer.Option(help="The GPU's product name, as the driver gives it.")]
PeakTflops = Annotated[
    float | None, typer.Option(min=0.001, help="Its dense peak instead, where the name is not known.")
]
Operands = Annotated[Dtype | None, typer.Option(help="Of the operands; else the half precision that the GPU has.")]
Counted = Annotated[
    Attention, typer.Option(help="Count all of the attention's product, or the half that a causal mask needs.")
]
Recomputed = Annotated[
    Recompute, typer.Option(help="What the backward pass computes again: the attention's product (selective) or all.")
]


def mfu(
    *,
    tokens_per_s: Annotated[float, typer.Option(min=0, help="Tokens a second of the whole job.")],
    params: Params,
    layers: Annotated[int, typer.Option(min=1, help="Layers with attention.")],
    heads: Annotated[int, typer.Option(min=1, help="Heads of attention a layer.")],
    head_dim: Annotated[int, typer.Option(min=1, help="Width of a head.")],
    sequence: Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence.")] = None,
    lengths: Lengths = None,
    expert_params: ExpertParams = None,
    num_experts: NumExperts = None,
    top_k: TopK = None,
    num_gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs of the job.")] = 1,
    model: Model = None,
    peak_tflops: PeakTflops = None,
    dtype: Operands = None,
    attention: Counted = Attention.FULL,
    recompute: Recomputed = Recompute.NONE,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
    is_wide: Wide = False,
) -> int:
    """Compute the share of its GPUs' peak that a training run reaches.

    MFU and HFU, model and hardware FLOP utilisation: tokens/s × FLOPs a token ÷ (GPUs × dense peak).
    """
    if not all(map(math.isfinite, (tokens_per_s, params, peak_tflops or 0.0, expert_params or 0.0))):
        raise CommandError("a number must be finite", "Neither nan nor inf.", Exit.USAGE)
    peak, source = _peak(model, peak_tflops, dtype)
    matmul_params = _params(params, expert_params, num_experts, top_k)
    shape = ModelShape(matmul_params, layers, heads, head_dim, _sequence(sequence, lengths))
    found = utilisation(
        shape, tokens_per_s=tokens_per_s, num_gpus=num_gpus, peak_tflops=peak, attention=attention, recompute=recompute
    )
    document = {**_document(found, shape), "num_gpus": num_gpus, "peak_tflops": peak, "peak_source": source}
    page = _page(document, found, tokens_per_s, f"{num_gpus} × {peak:g} TFLOP/s dense ({source})")
    return show(page, Format(as_json, as_yaml, is_wide))


def _page(document: dict[str, object], found: Utilisation, tokens_per_s: float, peak: str) -> Page:
    """Return the shares with their computation. A share that cannot be true has a warning and its own exit code."""
    mfu_text = f"MFU {found.mfu:.1%} with {found.attention.value} attention"
    texts = [
        f"{mfu_text}; HFU {found.hfu:.1%} with recompute {found.recompute.value}",
        f"  {found.flops_per_token:.4g} FLOPs a token × {tokens_per_s:,.0f} tokens/s",
        f"  of {peak}",
    ]
    if found.hfu <= _UNBELIEVABLE:
        return Page(document, texts)
    return Page(document, [*texts, "  More than the GPUs can do: one of these numbers is wrong."], Exit.INVALID)


def _document(found: Utilisation, shape: ModelShape) -> dict[str, object]:
    return {
        "mfu": found.mfu,
        "hfu": found.hfu,
        "flops_per_token": found.flops_per_token,
        "matmul_params": shape.matmul_params,
        "sequence": shape.sequence,
        "attention": found.attention.value,
        "recompute": found.recompute.value,
    }


def _params(params: float, expert_params: float | None, num_experts: int | None, top_k: int | None) -> float:
    if expert_params is None and num_experts is None and top_k is None:
        return params
    if expert_params is None or num_experts is None or top_k is None:
        advice = "--expert-params 45.1e9 --experts 8 --top-k 2, and --params for the parameters that each token meets."
        raise CommandError("a mixture of experts takes --expert-params, --experts and --top-k", advice, Exit.USAGE)
    try:
        return active_params(params, expert_params, num_experts=num_experts, top_k=top_k)
    except ValueError as fault:
        raise CommandError(f"--top-k {top_k}: {fault}", "Such as --experts 8 --top-k 2.", Exit.USAGE) from fault


def _sequence(sequence: int | None, lengths: str | None) -> float:
    """Return T. Raises ``CommandError``."""
    if (sequence is None) == (lengths is None):
        advice = "Such as --sequence 8192, or of packed ones --lengths 4096,3072,1024."
        raise CommandError("name either --sequence or --lengths", advice, Exit.USAGE)
    if lengths is None:
        assert sequence is not None  # noqa: S101  # one of the two was named
        return sequence
    try:
        return packed_sequence([int(each) for each in lengths.split(",")])
    except ValueError as fault:
        advice = "Whole numbers of tokens with commas between: --lengths 4096,3072,1024."
        raise CommandError(f"--lengths {lengths!r} are no lengths of sequences", advice, Exit.USAGE) from fault


def _peak(model: str | None, peak_tflops: float | None, dtype: Dtype | None) -> tuple[float, str]:
    """Return TFLOP/s and their source. Raises ``CommandError`` if the peak is not known, since none is made up."""
    if (model is None) == (peak_tflops is None):
        raise CommandError(
            "name either --model or --peak-tflops", "Such as --model 'NVIDIA H100 80GB HBM3'.", Exit.USAGE
        )
    if peak_tflops is not None:
        return peak_tflops, "as stated"
    assert model is not None  # noqa: S101  # one of the two was named
    peak = peak_of(model)
    if peak is None:
        advice = f"Give --peak-tflops, dense. Known are {', '.join(sorted(PEAKS))}."
        raise CommandError(f"no peak is known of {model!r}", advice, Exit.NOT_FOUND)
    tflops = peak.tflops_of(dtype)
    if tflops is None:
        raise CommandError(f"{model} computes in fp16 alone", "Leave --dtype out, or say fp16.", Exit.NOT_FOUND)
    return tflops, f"{model}: {peak.source}" + ("" if peak.has_bf16 else "; fp16 alone")
