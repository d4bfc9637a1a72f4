"""What training costs, held against what torch counts, and against figures that others have published."""

import importlib.util
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.train.report.flops import (
    Attention,
    ModelShape,
    Recompute,
    active_params,
    flops_per_token,
    packed_sequence,
    peak_of,
    recomputed_per_token,
    utilisation,
)
from muster.train.report.peaks import PEAKS, Dtype

if importlib.util.find_spec("torch") is not None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

LLAMA_8B = ModelShape(matmul_params=7.5e9, layers=32, heads=32, head_dim=128, sequence=8192)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing to count with")
def test_the_formula_is_what_torch_counts() -> None:
    layers, heads, head_dim, sequence, vocabulary, batch = 2, 4, 8, 16, 50, 3
    width = heads * head_dim
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * layers
    weights = [torch.randn(shape, requires_grad=True) for shape in [*shapes, (width, vocabulary)]]
    x = torch.randn(batch, sequence, width, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        for into, out, up, down in zip(*[iter(weights[:-1])] * 4, strict=True):
            parts = (x @ into).chunk(3, dim=-1)
            query, key, value = (part.view(batch, sequence, heads, head_dim).transpose(1, 2) for part in parts)
            mixed = (query @ key.transpose(-1, -2)).softmax(-1) @ value
            x = x + mixed.transpose(1, 2).reshape(batch, sequence, width) @ out
            x = x + (x @ up).relu() @ down
        torch.autograd.backward((x @ weights[-1]).sum())
    model = ModelShape(sum(weight.numel() for weight in weights), layers, heads, head_dim, sequence)
    assert counter.get_total_flops() == flops_per_token(model, Attention.FULL) * batch * sequence


def test_the_conventions_differ_as_published() -> None:
    ratio = flops_per_token(LLAMA_8B, Attention.FULL) / flops_per_token(LLAMA_8B, Attention.CAUSAL)
    assert ratio == pytest.approx(1.125, abs=0.005)


def test_a_full_recompute_is_work_of_the_hardware_alone() -> None:
    said = {"tokens_per_s": 6_000.0, "num_gpus": 1, "peak_tflops": 989.0}
    plain = utilisation(LLAMA_8B, **said)  # type: ignore[arg-type]  # named by their types above
    again = utilisation(LLAMA_8B, **said, recompute=Recompute.FULL)  # type: ignore[arg-type]  # as above
    assert plain.mfu == plain.hfu == again.mfu
    assert again.hfu == pytest.approx(plain.mfu * 4 / 3)
    assert plain.mfu == pytest.approx(6_000 * (6 * 7.5e9 + 12 * 32 * 32 * 128 * 8192) / 989e12)


@pytest.mark.parametrize("attention", Attention)
def test_what_is_computed_again_is_the_attentions_product_or_a_third_of_all(attention: Attention) -> None:
    told = {each: recomputed_per_token(LLAMA_8B, attention, each) for each in Recompute}
    pairs = 4 * 32 * 32 * 128 * 8192 / (2 if attention is Attention.CAUSAL else 1)
    assert told == {
        Recompute.NONE: 0,
        Recompute.SELECTIVE: pytest.approx(pairs),
        Recompute.FULL: pytest.approx(2 * 7.5e9 + pairs),
    }


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=50))
def test_a_packed_sequence_costs_what_its_sequences_cost_alone(lengths: list[int]) -> None:
    def flops(sequence: float, num_tokens: int) -> float:
        return flops_per_token(replace(LLAMA_8B, sequence=sequence), Attention.FULL) * num_tokens

    packed = flops(packed_sequence(lengths), sum(lengths))
    assert packed == pytest.approx(sum(flops(length, length) for length in lengths))
    assert packed <= flops(sum(lengths), sum(lengths)) * (1 + 1e-9), "as if each saw all others"


@pytest.mark.parametrize("lengths", [[], [0], [5, -1]])
def test_what_has_no_tokens_is_no_sequence(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="each of a token or more"):
        packed_sequence(lengths)


def test_of_experts_those_count_that_a_token_meets() -> None:
    assert active_params(10, 80, num_experts=8, top_k=2) == 30
    assert active_params(10, 80, num_experts=8, top_k=8) == 90, "a dense model of the same size"
    for top_k in (0, 9):
        with pytest.raises(ValueError, match=f"from 1 to the 8 experts, not {top_k}"):
            active_params(10, 80, num_experts=8, top_k=top_k)


def test_what_knows_no_bf16_has_no_peak_for_it() -> None:
    old, new = PEAKS["Tesla V100-SXM2-32GB"], PEAKS["H200"]
    assert [old.tflops_of(each) for each in (None, Dtype.FP16, Dtype.BF16)] == [125, 125, None]
    assert [new.tflops_of(each) for each in (None, Dtype.FP16, Dtype.BF16)] == [989, 989, 989]


@pytest.mark.parametrize("name", ["NVIDIA A1000", "NVIDIA L40S-Q", "nvidia l40s", "Quadro", ""])
def test_a_likeness_has_no_peak(name: str) -> None:
    assert peak_of(name) is None


def test_names_that_contain_one_another_are_apart() -> None:
    found = {name: peak_of(f"NVIDIA {name}") for name in ("L4", "L40", "L40S", "A10", "A10G", "H20", "H200")}
    assert len({peak.tflops for peak in found.values() if peak is not None}) == len(found)


def test_the_ridge_is_in_operations_a_byte() -> None:
    """Of an A100 of 80 GB: 153, not 0.153, and not the 156 of a rounded bandwidth."""
    peak = peak_of("NVIDIA A100-SXM4-80GB")
    assert peak is not None
    assert round(peak.ridge_flop_per_byte) == 153


@pytest.mark.parametrize("name", sorted(PEAKS))
def test_no_peak_is_one_with_sparsity(name: str) -> None:
    """A dense peak is at most what the newest board does, and says whence it is known."""
    assert 50 <= PEAKS[name].tflops <= 2500
    assert PEAKS[name].source


@pytest.mark.parametrize(("num_gpus", "peak"), [(0, 1.0), (1, 0.0), (1, -5.0)])
def test_nothing_has_no_utilisation(num_gpus: int, peak: float) -> None:
    with pytest.raises(ValueError, match="can do nothing"):
        utilisation(LLAMA_8B, tokens_per_s=1.0, num_gpus=num_gpus, peak_tflops=peak)
