"""``muster mfu``: what share of its GPUs' peak a training run reaches, told with the convention it was counted by."""

import math
from typing import Annotated, Final

import typer

from muster.cli.exits import CommandError, Exit
from muster.cli.output import AsJson, AsYaml, Format, Page, Wide, show
from muster.train.flops import Attention, ModelShape, Recompute, peak_of, utilisation
from muster.train.peaks import PEAKS

_UNBELIEVABLE: Final = 1.0


def mfu(
    *,
    tokens_per_s: Annotated[float, typer.Option(min=0, help="Tokens a second of the whole job.")],
    params: Annotated[
        float, typer.Option(min=1, help="Parameters in matrix products: with the output head, without the embedding.")
    ],
    layers: Annotated[int, typer.Option(min=1, help="Layers with attention.")],
    heads: Annotated[int, typer.Option(min=1, help="Heads of attention a layer.")],
    head_dim: Annotated[int, typer.Option(min=1, help="Width of a head.")],
    sequence: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")],
    num_gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs of the job.")] = 1,
    model: Annotated[str | None, typer.Option(help="The GPU's product name, as the driver gives it.")] = None,
    peak_tflops: Annotated[
        float | None, typer.Option(min=0.001, help="Its dense peak instead, where the name is not known.")
    ] = None,
    attention: Annotated[
        Attention, typer.Option(help="Count all of the attention's product, or the half that a causal mask needs.")
    ] = Attention.FULL,
    recompute: Annotated[Recompute, typer.Option(help="What the backward pass computes again.")] = Recompute.NONE,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
    is_wide: Wide = False,
) -> int:
    """What share of its GPUs' peak a training run reaches.

    MFU and HFU, model and hardware FLOP utilisation: tokens/s × FLOPs a token ÷ (GPUs × dense peak).
    """
    if not all(map(math.isfinite, (tokens_per_s, params, peak_tflops or 0.0))):
        raise CommandError("a number must be finite", "Neither nan nor inf.", Exit.USAGE)
    peak, source = _peak(model, peak_tflops)
    shape = ModelShape(params, layers, heads, head_dim, sequence)
    found = utilisation(
        shape,
        tokens_per_s=tokens_per_s,
        num_gpus=num_gpus,
        peak_tflops=peak,
        attention=attention,
        recompute=recompute,
    )
    said = [
        f"MFU {found.mfu:.1%} with {attention.value} attention; HFU {found.hfu:.1%} with recompute {recompute.value}",
        f"  {found.flops_per_token:.4g} FLOPs a token × {tokens_per_s:,.0f} tokens/s",
        f"  of {num_gpus} × {peak:g} TFLOP/s dense ({source})",
    ]
    if found.hfu > _UNBELIEVABLE:
        said.append("  More than the GPUs can do: one of these numbers is not what it says.")
    document = {
        "mfu": found.mfu,
        "hfu": found.hfu,
        "flops_per_token": found.flops_per_token,
        "attention": attention.value,
        "recompute": recompute.value,
        "num_gpus": num_gpus,
        "peak_tflops": peak,
        "peak_source": source,
    }
    code = Exit.INVALID if found.hfu > _UNBELIEVABLE else Exit.OK
    return show(Page(document, said, code), Format(as_json, as_yaml, is_wide))


def _peak(model: str | None, peak_tflops: float | None) -> tuple[float, str]:
    """(TFLOP/s, whence). Raises ``CommandError``: it is not known, and none is made up."""
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
    return peak.tflops, f"{model}: {peak.source}" + ("" if peak.has_bf16 else "; fp16 alone")
