"""A job is named by id or name, by a beginning of either that fits one alone, or by ``-`` for the last one."""

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import JOB, Command
from tests.recorded_server import Answer, Requested, serving

FIRST, SECOND, THIRD = (f"job_{digit * 26}" for digit in "abc")
JOBS: list[dict[str, Any]] = [
    {**JOB, "id": THIRD, "name": "train", "state": "ACTIVE"},
    {**JOB, "id": SECOND, "name": "train", "state": "FAILED"},
    {**JOB, "id": FIRST, "name": "evaluate", "state": "SUCCEEDED"},
]


def answering(submitted: str = SECOND) -> Callable[[Requested, int], Answer]:
    """A server of these jobs, on which each one's events are empty."""

    def answer(requested: Requested, _number: int) -> Answer:
        parts = urlsplit(requested.path)
        if requested.method == "POST":
            return Answer(201, {**JOB, "id": submitted})
        if parts.path != "/v1/jobs":
            return Answer(200, {"items": [], "next_cursor": None})
        name = parse_qs(parts.query).get("name", [None])[0]
        return Answer(200, {"items": [job for job in JOBS if name in {None, job["name"]}], "next_cursor": None})

    return answer


@pytest.mark.parametrize(
    ("named", "job_id"),
    [
        (FIRST, FIRST),
        ("evaluate", FIRST),
        ("train", THIRD),  # the one that has not ended
        ("eval", FIRST),
        (SECOND[:12], SECOND),
    ],
)
def test_a_job_is_found_by_what_names_it_alone(muster: Command, named: str, job_id: str) -> None:
    with serving(answering()) as server:
        answer = muster.run("job", "events", named, url=server.url)
        assert answer.returncode == Exit.OK, answer.stderr
        assert urlsplit(server.requested[-1].path).path == f"/v1/jobs/{job_id}/events"


@pytest.mark.parametrize(
    ("named", "code", "words"),
    [
        ("other", Exit.NOT_FOUND, "there is no job 'other'"),
        ("t", Exit.USAGE, "'t' could be 2 jobs"),
        ("-", Exit.NOT_FOUND, "no job was submitted from here"),
    ],
)
def test_what_names_none_or_several_is_refused(muster: Command, named: str, code: Exit, words: str) -> None:
    jobs = [{**job, "state": "ACTIVE"} for job in JOBS]
    with serving(
        lambda requested, _number: Answer(200, {"items": _of(jobs, requested), "next_cursor": None})
    ) as server:
        answer = muster.run("job", "cancel", named, url=server.url)
        assert not any(requested.method == "POST" for requested in server.requested)
    assert answer.returncode == code
    assert words in answer.stderr


def _of(jobs: list[dict[str, Any]], requested: Requested) -> list[dict[str, Any]]:
    name = parse_qs(urlsplit(requested.path).query).get("name", [None])[0]
    return [job for job in jobs if name in {None, job["name"]}]


def test_the_last_job_is_the_one_that_was_submitted_from_here_to_that_server(muster: Command) -> None:
    with serving(answering()) as server, serving(answering(FIRST)) as other:
        for url in (server.url, other.url):
            assert muster.run("job", "submit", "--command", "--", "true", url=url).returncode == Exit.OK
        assert muster.run("job", "events", "-", url=server.url).returncode == Exit.OK
        assert urlsplit(server.requested[-1].path).path == f"/v1/jobs/{SECOND}/events"
