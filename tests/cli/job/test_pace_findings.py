"""``muster job explain`` states what slows a job down, and why nothing is found."""

from muster.cli.job.job_plan import finding_lines
from muster.documents import JobFinding

FINDING: JobFinding = {
    "kind": "loader_bound",
    "text": "busy for 60% of a step",
    "advice": "Use more loader workers.",
    "value": 0.6,
    "bar": 0.9,
    "repaired": 0.9,
    "unit": "share",
    "gain": 1.5,
    "since": "2026-11-29T00:00:00Z",
    "until": "2026-11-29T00:05:00Z",
    "num_reports": 2,
}


def test_a_finding_has_its_evidence_and_its_advice() -> None:
    lines = finding_lines({"items": [FINDING], "why": None})
    assert lines == [
        "loader_bound: busy for 60% of a step (2 reports, 2026-11-29T00:00:00Z to 2026-11-29T00:05:00Z)",
        "  Use more loader workers.",
    ]


def test_none_has_its_reason() -> None:
    assert finding_lines({"items": [], "why": "no pace"}) == ["no finding about its speed: no pace"]


def test_a_job_that_has_not_run_and_an_older_server_add_nothing() -> None:
    assert finding_lines({"items": [], "why": None}) == []
    assert finding_lines(None) == []
