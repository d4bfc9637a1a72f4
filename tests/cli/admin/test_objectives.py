"""``muster objectives`` states what burns, and what a spent budget forbids."""

from typing import Any

from muster.cli.admin.objectives import COLUMNS, details_of

BURNS: dict[str, Any] = {
    "name": "fast",
    "factor": 14.4,
    "long_s": 3600.0,
    "short_s": 300.0,
    "severity": "page",
    "long_rate": 20.0,
    "short_rate": 100.0,
    "since": "2026-11-29T00:00:00Z",
}


def objective(**more: object) -> dict[str, Any]:
    return {
        "name": "production-success",
        "job_class": "production",
        "indicator": "success",
        "target": 0.999,
        "window_days": 7,
        "state": "page",
        "state_since": "2026-11-29T00:00:00Z",
        "good_share": 0.8,
        "num_good": 8,
        "num_bad": 2,
        "left_fraction": -19.0,
        "is_spent": True,
        "forbids": ["drain", "policy"],
        "is_enforced": True,
        "burn_rates": [{**BURNS, "name": "slow", "since": None}, BURNS],
        **more,
    }


def test_a_row_has_target_and_rest_of_the_budget() -> None:
    cells = {column.name: column.cell(objective()) for column in COLUMNS}
    assert (cells["TARGET"], cells["NOW"], cells["BUDGET LEFT"]) == ("99.9% in 7d", "80%", "0%")
    assert {column.name: column.cell(objective(good_share=None)) for column in COLUMNS}["NOW"] == "–"


def test_each_pair_that_burns_has_a_line_and_what_is_forbidden_has_one() -> None:
    burns, forbids = details_of([objective()])
    assert burns.startswith("production-success burns (page) for ")
    assert burns.endswith(": 20 × over 1 h, 100 × over 5 min")
    assert forbids.startswith("the budget of production-success is spent: it forbids drain, policy")


def test_what_is_only_recorded_is_stated_as_such() -> None:
    *_, recorded = details_of([objective(is_enforced=False)])
    assert "it would forbid, were `objectives.forbids` true: drain, policy" in recorded


def test_a_budget_that_is_there_has_no_line() -> None:
    assert list(details_of([objective(is_spent=False, burn_rates=[])])) == []
