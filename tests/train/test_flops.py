"""What training costs, held against what torch counts, and against figures that others have published."""

import importlib.util

import pytest

from muster.train.flops import Attention, ModelShape, Recompute, flops_per_token, peak_of, utilisation
from muster.train.peaks import PEAKS

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
