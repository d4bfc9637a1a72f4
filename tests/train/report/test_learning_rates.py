"""Which learning rates suit which batch, and the warning about one that does not."""

import importlib.util
import math

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED")
if importlib.util.find_spec("torch") is not None:
    import torch

    from muster.train.report.learning_rates import (
        Rates,
        TunedFor,
        batch_of,
        ranks_text,
        resume_text,
        tuning_text,
    )


def rates(lr: float = 0.1, *, is_fresh: bool = True, **more: object) -> "Rates":
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=lr)
    optimizer.param_groups[0].update(more)
    return Rates(optimizer, is_fresh=is_fresh)


@pytest.mark.parametrize("factor", [1, 2, 8, 0.25])
def test_a_rate_scaled_by_either_rule_is_fit(factor: float) -> None:
    tuned = TunedFor(256, 0.1)
    for rate in (0.1 * factor, 0.1 * math.sqrt(factor), 0.1 * factor * 1.04):
        assert tuning_text(tuned, int(256 * factor), rates(rate)) == ""


def test_a_rate_that_follows_no_rule_is_reported_with_what_either_would_make_of_it() -> None:
    words = tuning_text(TunedFor(256, 0.1), 4096, rates(0.1))
    assert words.startswith("the batch is 4,096 samples, 16 times the 256 that a learning rate of 0.1 was tuned for")
    assert "it would be 1.6 (SGD), with its square root 0.4 (Adam)" in words
    assert "0.1 was tuned for this batch of 256" in tuning_text(TunedFor(256, 0.1), 256, rates(0.3))


def test_a_batch_that_none_reports_of_is_requested() -> None:
    assert "run.report(samples=…)" in tuning_text(TunedFor(256, 0.1), None, rates())


def test_the_rate_is_that_of_the_schedules_begin_or_of_its_named_peak() -> None:
    model = torch.nn.Linear(1, 1)
    warm = torch.optim.SGD(model.parameters(), lr=0.4)
    torch.optim.lr_scheduler.LinearLR(warm, start_factor=0.01)
    assert Rates(warm, is_fresh=True).highest == pytest.approx(0.4)
    assert Rates(warm, is_fresh=True).current == [pytest.approx(0.004)]
    cycle = torch.optim.SGD(model.parameters(), lr=0.4)
    torch.optim.lr_scheduler.OneCycleLR(cycle, max_lr=0.8, total_steps=10)
    assert Rates(cycle, is_fresh=True).highest == pytest.approx(0.8)


def test_of_several_groups_the_highest_counts() -> None:
    parts = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [parts[0]], "lr": 0.01}, {"params": [parts[1]], "lr": 0.2}])
    assert Rates(optimizer, is_fresh=True).highest == 0.2


def test_after_a_resume_a_rate_without_a_schedule_states_nothing_of_its_begin() -> None:
    assert rates(0.003, is_fresh=False).highest is None
    assert tuning_text(TunedFor(256, 0.1), 4096, rates(0.003, is_fresh=False)) == ""
    assert rates(0.003, is_fresh=False, initial_lr=0.1).highest == 0.1


def test_a_batch_of_the_same_size_after_a_resume_is_not_stated_of() -> None:
    assert resume_text(8.0, 8, rates()) == ""
    assert "2 times as many" in resume_text(8.0, 16, rates())
    assert "the learning rate is still 0.1" in resume_text(8.0, 16, rates())


def test_a_learning_rate_that_is_none_is_not_stated_of() -> None:
    assert "still 0.1" in ranks_text(2, 4, rates())
    assert ranks_text(2, 4, rates(lr=0.1).__class__(None, is_fresh=True)) == ""
    unknown = rates()
    unknown.current = []
    assert ranks_text(2, 4, unknown) == resume_text(1, 4, unknown) == ""


def test_a_batch_is_each_readers_share_once() -> None:
    assert batch_of([(0, 4), (0, 4), (1, 5), (1, 5)]) == 9, "two ranks share each reader's work"
    assert batch_of([(0, 4), (1, None)]) is None
    assert batch_of([(0, None)]) is None


@pytest.mark.parametrize(
    ("batch", "rate", "named"), [(0, 0.1, "batch"), (8, 0.0, "learning_rate"), (8, math.nan, "learning_rate")]
)
def test_what_was_tuned_must_be_numbers_above_zero(batch: int, rate: float, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} must be a number"):
        TunedFor(batch, rate)
