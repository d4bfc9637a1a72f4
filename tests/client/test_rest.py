"""The REST client: what it repeats, what it never repeats, and where its key never goes."""

import pytest

from muster.client.rest import RestClient
from muster.client.transport import Problem, UnreachableError
from tests.recorded_server import Answer, Asked, problem, serving

JOB = {"id": "job_1", "state": "QUEUED"}


def test_a_change_is_repeated_under_one_key_until_it_is_answered() -> None:
    def answer(_asked: Asked, number: int) -> Answer:
        return problem(503, "unavailable", retry_after=0) if number < 2 else Answer(201, JOB)

    with serving(answer) as server, RestClient(server.url, "mst_x") as client:
        assert client.submit_job({"name": "a"})["id"] == "job_1"
        assert len({asked.headers["idempotency-key"] for asked in server.asked}) == 1
        assert len(server.asked) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422, 500])
def test_what_repetition_cannot_cure_is_not_repeated(status: int) -> None:
    with serving(lambda _asked, _number: problem(status, "no")) as server, RestClient(server.url, "mst_x") as client:
        with pytest.raises(Problem) as caught:
            client.submit_job({"name": "a"})
        assert (caught.value.status, caught.value.suggestion) == (status, "do otherwise")
        assert len(server.asked) == 1


def test_a_key_is_never_made_twice_by_patience() -> None:
    with serving(lambda _asked, _number: problem(503, "unavailable")) as server, RestClient(server.url, "m") as client:
        with pytest.raises(Problem):
            client.create_key({"name": "k", "role": "operator"})
        assert len(server.asked) == 1
        assert "idempotency-key" not in server.asked[0].headers


def test_a_redirect_is_a_problem_and_the_key_stays_here() -> None:
    with (
        serving(lambda _asked, _number: Answer(200, {})) as other,
        serving(lambda _asked, _number: Answer(302, headers={"Location": f"{other.url}/v1/whoami"})) as server,
        RestClient(server.url, "mst_x") as client,
    ):
        with pytest.raises(Problem):
            client.whoami()
        assert other.asked == []


def test_nobody_there_is_said_as_such() -> None:
    with RestClient("http://127.0.0.1:9", "mst_x") as client, pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9"):
        client.create_key({"name": "k", "role": "operator"})


def test_pages_are_walked_to_their_end() -> None:
    def answer(asked: Asked, number: int) -> Answer:
        assert ("cursor=c1" in asked.path) == (number == 1)
        return Answer(200, {"items": [{"id": f"job_{number}"}], "next_cursor": "c1" if number == 0 else None})

    with serving(answer) as server, RestClient(server.url, "mst_x") as client:
        assert [job["id"] for job in client.jobs(limit=1)] == ["job_0", "job_1"]


def test_a_broken_stream_goes_on_where_it_broke_and_repeats_nothing() -> None:
    def piece(position: int) -> bytes:
        return f'id: {position}\nevent: log\ndata: {{"position": {position}}}\n\n'.encode()

    def answer(asked: Asked, number: int) -> Answer:
        headers = {"Content-Type": "text/event-stream"}
        if number == 0:
            headers["Content-Length"] = "10000"  # the connection ends before its word is kept
            return Answer(200, headers=headers, raw=piece(1) + piece(2))
        assert asked.headers["last-event-id"] == "2"
        return Answer(200, headers=headers, raw=piece(3) + b'event: end\ndata: {"state": "SUCCEEDED"}\n\n')

    with serving(answer) as server, RestClient(server.url, "mst_x") as client:
        assert [data["position"] for data in client.follow_logs("job_1")] == [1, 2, 3]
