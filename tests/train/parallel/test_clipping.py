"""Clipping of gradients, against torch's own on one rank. ``test_layouts`` has it on several meshes."""

import pytest
import torch

from muster.train.parallel.meshes import clip_grad_norm


@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_it_scales_as_torch_does_and_leaves_a_norm_within_the_limit(max_norm: float, norm_type: float) -> None:
    gradients = [torch.tensor([3.0, -4.0]), torch.tensor([[12.0]])]
    ours, theirs = ([torch.nn.Parameter(torch.zeros_like(one)) for one in gradients] for _ in range(2))
    for parameters in (ours, theirs):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
    norm = clip_grad_norm(ours, max_norm, norm_type)
    assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type))
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_without_gradients_the_norm_is_zero() -> None:
    assert clip_grad_norm([torch.nn.Parameter(torch.ones(2))], 1.0) == 0
