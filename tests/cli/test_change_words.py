"""What would let a job start at once, as the command line and pages say it."""

from typing import get_args

import pytest

from console import plan_texts
from muster.cli.job.job_plan import change_words
from scheduler.explain.advice import ChangeField


@pytest.mark.parametrize(
    ("field", "value", "reported", "shown"),
    [
        ("wall_time_s", 600.0, "with --wall-time 600s", "with a wall time of 10 min or less"),
        ("topology.required", "block", "with --within block", "anywhere in one block"),
        ("topology.required", "fleet", "without --within", "anywhere in the fleet"),
        ("node_labels.without", "disk", "with any value of the label disk", "without what it asks of the label disk"),
        ("shape.nodes", 2, "with --nodes 2", "on 2 hosts"),
    ],
)
def test_a_change_has_words(field: str, value: float | str, reported: str, shown: str) -> None:
    assert change_words({"field": field, "value": value}) == reported
    assert plan_texts.change_words(field, value) == shown


@pytest.mark.parametrize("field", get_args(ChangeField))
def test_every_change_has_some(field: str) -> None:
    assert change_words({"field": field, "value": 8}) != f"with {field} 8"
    assert "8" in plan_texts.change_words(field, 8)


def test_one_that_only_a_newer_server_knows_is_reported_by_its_name() -> None:
    assert change_words({"field": "new.field", "value": 8}) == "with new.field 8"
