"""The rule for a value that is not finite, as a program, a variable and a job state it."""

import pytest
from pydantic import ValidationError

pytest.importorskip("torch")

from muster.domain.job.spec import JobSpec
from muster.train.values.on_fault import ValueFaultRule  # its package imports torch

PROGRAM = {"name": "one", "program": {"script": "/srv/train.py"}}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("stop", ValueFaultRule("stop", 1, 3)),
        ("rollback", ValueFaultRule("rollback", 1, 3)),
        ("rollback:2", ValueFaultRule("rollback", 2, 3)),
        ("skip:1:10", ValueFaultRule("skip", 1, 10)),
    ],
)
def test_a_rule_means_the_same_to_the_program_and_to_the_job(text: str, rule: ValueFaultRule) -> None:
    assert ValueFaultRule.of(text) == rule
    assert JobSpec.model_validate({**PROGRAM, "on_value_fault": text}).on_value_fault == text


@pytest.mark.parametrize("text", ["", "restart", "stop:2", "rollback:0", "rollback:100", "skip:1:2:3", "skip:", "Stop"])
def test_another_text_is_refused_by_both_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"stop, rollback\[:GENERATIONS\[:BUDGET\]\] or skip"):
        ValueFaultRule.of(text)
    with pytest.raises(ValidationError, match=r"stop, rollback\[:GENERATIONS\[:BUDGET\]\] or skip"):
        JobSpec.model_validate({**PROGRAM, "on_value_fault": text})
