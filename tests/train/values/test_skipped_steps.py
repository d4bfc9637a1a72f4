"""Steps that a gradient scaler skips are counted from its scale."""

import pytest

torch = pytest.importorskip("torch")

from muster.train.values.skipped_steps import SkippedSteps  # noqa: E402  # it imports torch


def test_each_step_with_gradients_beyond_half_precision_counts_once() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
    skipped = SkippedSteps([object(), scaler])
    num_skipped = 0
    for factor in (1.0, 1e38, 1.0, 1.0, 1.0, 1e38, 1e38, 1.0):
        before = weight.detach().clone()
        optimizer.zero_grad()
        scaler.scale(weight.sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        num_skipped += bool(torch.equal(before, weight.detach()))
        skipped.end_step()
    assert num_skipped == 3
    assert skipped.word() == {"skipped_steps": 3}
    assert skipped.word() == {"skipped_steps": 0}


def test_without_a_scaler_nothing_is_counted() -> None:
    skipped = SkippedSteps([torch.nn.Linear(1, 1)])
    skipped.end_step()
    assert skipped.word() == {}
