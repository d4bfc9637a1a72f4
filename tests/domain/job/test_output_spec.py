"""Patterns of outputs stay inside of the working folder."""

import pytest
from pydantic import ValidationError

from muster.domain.job.output_spec import MOST_PATTERNS
from muster.domain.job.request import request_of_spec
from muster.domain.job.spec import JobSpec
from muster.wire.host import HOST_CAPABILITIES


def spec(*patterns: str) -> JobSpec:
    return JobSpec.model_validate({"name": "one", "program": {"script": "/srv/train.py"}, "outputs": patterns})


@pytest.mark.parametrize("pattern", ["model.pt", "models/**", "**/*.json", "logs/run-?/*", ".hidden", "a/**/b c.txt"])
def test_patterns_in_the_folder_are_accepted(pattern: str) -> None:
    assert spec(pattern).outputs == (pattern,)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("/etc/passwd", "is absolute"),
        ("../model", "leave the working folder"),
        ("models/../../x", "leave the working folder"),
        ("..", "leave the working folder"),
        ("models/", "empty part"),
        ("a//b", "empty part"),
        ("./a", "empty part"),
        ("models**", "stands alone"),
        ("a\nb", "printable"),
        ("", "at least 1 item"),
    ],
)
def test_others_are_refused_with_the_field_named(pattern: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why) as refused:
        spec("fine", pattern)
    assert refused.value.errors()[0]["loc"] == ("outputs", 1)


def test_too_many_are_refused() -> None:
    assert len(spec(*["a"] * MOST_PATTERNS).outputs) == MOST_PATTERNS
    with pytest.raises(ValidationError, match=f"at most {MOST_PATTERNS}"):
        spec(*["a"] * (MOST_PATTERNS + 1))


def test_a_job_with_patterns_needs_hosts_that_collect() -> None:
    assert request_of_spec(spec("a")).capabilities == ("outputs",)
    assert "outputs" in HOST_CAPABILITIES
    assert request_of_spec(spec()).capabilities == ()
