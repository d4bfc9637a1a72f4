"""A copy is submitted to a server of an earlier release too, which does not know what it is a copy of."""

import json

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import JOB, Command
from tests.recorded_server import Answer, Requested, problem, serving

ORIGINAL = {**JOB, "state": "FAILED", "tenant_id": "ten_1", "spec": {"name": "train"}, "attempts": []}


@pytest.mark.parametrize("words", [("job", "copy", "job_1"), ("job", "retry", "job_1")])
def test_an_earlier_release_gets_the_copy_without_its_original(muster: Command, words: tuple[str, ...]) -> None:
    def answer(request: Requested, _number: int) -> Answer:
        if request.method == "GET":
            return Answer(200, ORIGINAL)
        if "copied_from" in json.loads(request.body):
            fault = {"pointer": "/copied_from", "code": "extra_forbidden", "detail": "there is no such key"}
            return problem(422, "validation_failed", errors=[fault])
        return Answer(201, JOB)

    with serving(answer) as server:
        submitted = muster.run(*words, url=server.url)
    assert submitted.returncode == 0, submitted.stderr
    bodies = [json.loads(each.body) for each in server.requested if each.method == "POST"]
    assert bodies == [
        {"name": "train", "tenant_id": "ten_1", "copied_from": "job_1"},
        {"name": "train", "tenant_id": "ten_1"},
    ]


def test_another_refusal_is_shown(muster: Command) -> None:
    fault = {"pointer": "/copied_from", "code": "unknown_job", "detail": "there is no such job"}

    def answer(request: Requested, _number: int) -> Answer:
        is_read = request.method == "GET"
        return Answer(200, ORIGINAL) if is_read else problem(422, "validation_failed", errors=[fault])

    with serving(answer) as server:
        refused = muster.run("job", "retry", "job_1", url=server.url)
    assert refused.returncode == Exit.INVALID
    assert len(server.requested) == 2


def test_a_retry_that_is_interrupted_and_repeated_is_one_job(cold_muster: Command) -> None:
    def answer(request: Requested, number: int) -> Answer:
        if request.method == "GET":
            return Answer(200, ORIGINAL)
        return problem(500, "internal") if number == 1 else Answer(201, JOB)

    with serving(answer) as server:
        assert cold_muster.run("job", "retry", "job_1", url=server.url).returncode == Exit.SERVER_FAULT
        assert cold_muster.run("job", "retry", "job_1", url=server.url).returncode == 0
    keys = [each.headers["idempotency-key"] for each in server.requested if each.method == "POST"]
    assert len(keys) >= 2
    assert len(set(keys)) == 1
