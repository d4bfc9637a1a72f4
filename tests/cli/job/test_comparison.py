"""``muster job compare``: the table of jobs that the server compares, the best of each row, and what is missing."""

from typing import Any

import pytest

from muster.cli.framework.exits import Exit
from muster.documents.money import ComparedJob
from tests.cli.command import Command
from tests.recorded_server import Answer, serving

FIRST, SECOND = f"job_{'1' * 26}", f"job_{'2' * 26}"


def job(job_id: str, name: str, **figures: Any) -> dict[str, Any]:
    none = dict.fromkeys(ComparedJob.__annotations__)
    known = {"state": "SUCCEEDED", "tier": "spot", "gpus": 2, "attempts": 1, "reclaims": 0, "gpu_hours": "0.5"}
    return {**none, **known, "job_id": job_id, "name": name, "missing": {}, **figures}


def shown(muster: Command, *items: dict[str, Any], width: int = 200) -> dict[str, str]:
    """Return the lines of the command, by their first words."""
    with serving(lambda _requested, _number: Answer(200, {"items": list(items), "next_cursor": None})) as server:
        answer = muster.run("job", "compare", FIRST, SECOND, url=server.url, COLUMNS=str(width))
    assert answer.returncode == 0, answer.stderr
    assert server.requested[0].path == f"/v1/job-comparisons?job={FIRST}&job={SECOND}"
    return {line.strip().split("  ")[0]: " ".join(line.split()) for line in answer.stdout.splitlines()}


def test_the_best_of_a_row_is_marked_where_one_is_better(muster: Command) -> None:
    one = job(FIRST, "one", currency="EUR", tokens_per_s=900.0, step_p50_s=0.5, mfu=0.4, spent="0.2", goodput=0.5)
    other = job(SECOND, "other", currency="EUR", tokens_per_s=1200.0, step_p50_s=0.25, mfu=0.4, spent="0.1")
    lines = shown(muster, one, other)
    assert lines["TOKENS/S"] == "TOKENS/S 900 1,200 *"
    assert lines["STEP P50"] == "STEP P50 0.5 s 0.25 s", "a step may have more tokens"
    assert lines["MFU"] == "MFU 40.0% 40.0%", "equal values have no best"
    assert lines["GOODPUT"] == "GOODPUT 50.0% -", "a value alone is not compared"
    assert lines["COST, EUR"] == "COST, EUR 0.2 0.1", "a cheaper job may have done less"


def test_jobs_of_one_name_stand_by_their_ids_and_a_missing_figure_by_its_reason(muster: Command) -> None:
    missing = {"mfu": "its GPU has no known peak", "goodput": "it has had no GPU yet"}
    lines = shown(muster, job(FIRST, "same", missing=missing), job(SECOND, "same", missing={"mfu": missing["mfu"]}))
    assert lines[FIRST] == f"{FIRST} {SECOND}"
    assert f"- mfu of {FIRST}, {SECOND}: its GPU has no known peak" in lines.values()
    assert f"- goodput of {FIRST}: it has had no GPU yet" in lines.values()


@pytest.mark.parametrize("words", [(FIRST,), (FIRST, FIRST)])
def test_one_job_alone_is_refused_without_a_request(muster: Command, words: tuple[str, ...]) -> None:
    answer = muster.run("job", "compare", *words, url="http://127.0.0.1:9")
    assert answer.returncode == Exit.USAGE
    assert "Name two jobs or more" in answer.stderr
