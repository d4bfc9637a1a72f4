"""A plan is worded as what would be done, a pending job as what is: on the command line."""

from typing import Any

import pytest

from muster.cli.job.job_plan import lines_of
from muster.domain.job.plan_texts import OUTCOMES, Tense
from muster.domain.states import PlanOutcome

VICTIM = {"job_id": None, "tier": "spot", "num_gpus": 8, "notice_s": 120.0, "cost_gpu_s": 960.0}


def answer(outcome: PlanOutcome, **more: object) -> dict[str, Any]:
    silent: dict[str, Any] = {"why": None, "starts_at": None, "num_ahead": 0, "hosts": [], "victims": [], "changes": []}
    return {"outcome": outcome.value, **silent, **more}


@pytest.mark.parametrize("outcome", PlanOutcome)
def test_the_first_line_of_a_plan_states_what_would_be(outcome: PlanOutcome) -> None:
    (line,) = lines_of(answer(outcome), Tense.CONDITIONAL)
    assert " would " in line
    (line,) = lines_of(answer(outcome), Tense.DONE)
    assert line == OUTCOMES[Tense.DONE][outcome]
    assert "would" not in line


def test_what_gives_way_in_a_plan_would_give_way() -> None:
    lines = lines_of(answer(PlanOutcome.RECLAIMS, victims=[VICTIM]), Tense.CONDITIONAL)
    assert lines == [
        "GPUs would be reclaimed for it",
        "  would be reclaimed: 8 GPUs (spot), 120 s of notice, 960 GPU-seconds lost",
    ]


def test_the_moments_of_a_plan_are_those_at_which_it_would_start() -> None:
    early, late = "2026-01-01T01:00:00.123456+00:00", "2026-01-01T03:00:00+01:00"
    told = answer(PlanOutcome.HOLD, earliest_at=early, latest_at=None)
    assert lines_of(told, Tense.CONDITIONAL)[1].startswith("  would start at 2026-01-01T01:00:00Z at the earliest")
    assert lines_of(told, Tense.DONE)[1].startswith("  starts at 2026-01-01T01:00:00Z at the earliest")
    told = answer(PlanOutcome.HOLD, starts_at=late, earliest_at=early, latest_at=late)
    first, range_told = lines_of(told, Tense.DONE)
    assert first == "a place is held for it, free at about 2026-01-01T02:00:00Z"
    assert range_told == "  starts between 2026-01-01T01:00:00Z and 2026-01-01T02:00:00Z, in about 8 of 10 cases"
