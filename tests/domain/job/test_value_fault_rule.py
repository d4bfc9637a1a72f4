"""The rule of a job's wrong values is the one that the runtime takes: they may not import each other."""

import pytest

from muster.domain.job.spec import VALUE_FAULT_RULE
from muster.train.values.on_fault import ValueFaultRule

TEXTS = ["stop", "rollback", "skip", "rollback:2", "skip:1:99", "stop:1", "rollback:0", "rollback:100", "skip:", "roll"]


@pytest.mark.parametrize("text", [*TEXTS, "rollback:١", "skip:1:1:1", ""])
def test_the_job_and_the_runtime_take_the_same_rules(text: str) -> None:
    try:
        is_taken = bool(ValueFaultRule.of(text))
    except ValueError:
        is_taken = False
    assert (VALUE_FAULT_RULE.fullmatch(text) is not None) == is_taken
