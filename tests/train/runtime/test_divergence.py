"""Which values of a step end a run: by rank, without training."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from muster.train.parallel.ranks import Agreement  # noqa: E402  # it imports torch
from muster.train.runtime.divergence import DivergedError, Divergence  # noqa: E402  # it imports torch

ALONE = Agreement(0, 1, None)


class Known:
    def __init__(self, *, is_fused: bool = False) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1, fused=is_fused)
        self.divergence = Divergence(self.optimizer)

    def ends(self, *, loss: float | None = None, norm: Any = None, steps: bool = True) -> bool:
        self.divergence.begin()
        if norm is not None:
            self.divergence.note_grad_norm(norm)
        if steps:
            self.optimizer.step()
        if loss is not None:
            self.divergence.note_loss(loss)
        try:
            self.divergence.require_none(1, self.divergence.figures(), ALONE)
        except DivergedError:
            return True
        return False


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_value_that_is_not_finite_passes(value: float) -> None:
    assert Known().ends(loss=value)
    assert Known().ends(loss=1.0, norm=value)
    assert Known().ends(norm=torch.tensor(value))
    assert not Known().ends(loss=1.0, norm=torch.tensor(2.0))


def test_a_step_that_a_scaler_skips_is_no_divergence_and_the_next_one_is_judged_again() -> None:
    known = Known()
    assert not known.ends(loss=math.inf, norm=torch.tensor(math.inf), steps=False)
    assert known.ends(loss=1.0, norm=torch.tensor(math.nan))


def test_of_several_losses_of_a_step_one_that_is_not_finite_counts() -> None:
    known = Known()
    known.divergence.begin()
    known.optimizer.step()
    for loss in (math.nan, 1.0):
        known.divergence.note_loss(loss)
    assert known.divergence.figures()[1] == 1


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_real_scaler_that_lowers_its_scale_trains_on(is_fused: bool) -> None:  # noqa: FBT001  # a parameter
    """Its first scale is too high for half precision, so it skips until it fits. A fused optimizer skips by itself."""
    known = Known(is_fused=is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    num_stepped = 0
    for _ in range(60):
        known.divergence.begin()
        known.optimizer.zero_grad()
        scaler.scale((known.weight.half().sum() + 1).float()).backward()
        scaler.unscale_(known.optimizer)
        norm = torch.nn.utils.clip_grad_norm_([known.weight], 1.0)
        known.divergence.note_grad_norm(norm)
        scaler.step(known.optimizer)
        scaler.update()
        known.divergence.note_loss(1.0)
        known.divergence.require_none(1, known.divergence.figures(), ALONE)
        num_stepped += bool(norm.isfinite())
    assert 0 < num_stepped < 60
