"""Both REST clients: what they repeat, what they never repeat, how they follow, and where their key never goes."""

import inspect
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from muster import __version__
from muster.client import AsyncRestClient, Problem, RestClient, UnreachableError
from muster.client.bundles import MANIFEST_S
from muster.client.transport import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, trusted
from tests.client.both_clients import Ask, both_clients
from tests.recorded_server import Answer, Requested, problem, serving

JOB = {"id": "job_1", "state": "QUEUED"}
SPEC = {"name": "a", "program": {"script": "/a"}}
STREAM = {"Content-Type": "text/event-stream"}


@both_clients
def test_a_change_is_repeated_under_one_key_until_it_is_answered(ask: Ask) -> None:
    def answer(_requested: Requested, number: int) -> Answer:
        return problem(503, "unavailable", retry_after=0) if number < 2 else Answer(201, JOB)

    with serving(answer) as server:
        assert ask(server.url, lambda client: client.submit_job(SPEC))["id"] == "job_1"
        assert len({asked.headers["idempotency-key"] for asked in server.requested}) == 1
        assert len(server.requested) == 3


@both_clients
def test_the_same_key_that_is_being_worked_on_is_requested_again(ask: Ask) -> None:
    def answer(_requested: Requested, number: int) -> Answer:
        return problem(409, "request_in_flight") if number == 0 else Answer(201, JOB)

    with serving(answer) as server:
        assert ask(server.url, lambda client: client.submit_job(SPEC, idempotency_key="k"))["id"] == "job_1"
        assert [asked.headers["idempotency-key"] for asked in server.requested] == ["k", "k"]


@both_clients
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422, 500])
def test_what_repetition_cannot_cure_is_not_repeated(ask: Ask, status: int) -> None:
    with serving(lambda _asked, _number: problem(status, "no")) as server:
        with pytest.raises(Problem) as caught:
            ask(server.url, lambda client: client.submit_job(SPEC))
        assert (caught.value.status, caught.value.suggestion) == (status, "do otherwise")
        assert len(server.requested) == 1


@both_clients
def test_a_secret_is_never_requested_twice_by_retries(ask: Ask) -> None:
    with serving(lambda _asked, _number: problem(503, "unavailable")) as server:
        for make in (
            lambda client: client.create_key({"name": "k", "role": "operator"}),
            lambda client: client.create_join_token({"host_name": "h"}),
            lambda client: client.reset_password("per_1"),
        ):
            server.requested.clear()
            with pytest.raises(Problem):
                ask(server.url, make)
            assert len(server.requested) == 1
            assert "idempotency-key" not in server.requested[0].headers


@both_clients
def test_a_server_that_requests_more_time_than_a_call_has_is_not_queried_again(ask: Ask) -> None:
    answer = Answer(503, problem(503, "unavailable").document, headers={"Retry-After": "3600"})
    with serving(lambda _asked, _number: answer) as server:
        with pytest.raises(Problem) as caught:
            ask(server.url, lambda client: client.whoami())
        assert caught.value.retry_after_s == 3600
        assert len(server.requested) == 1


@both_clients
def test_a_redirect_is_a_problem_and_the_key_stays_here(ask: Ask) -> None:
    with (
        serving(lambda _asked, _number: Answer(200, {})) as other,
        serving(lambda _asked, _number: Answer(302, headers={"Location": f"{other.url}/v1/whoami"})) as server,
    ):
        with pytest.raises(Problem):
            ask(server.url, lambda client: client.whoami())
        assert other.requested == []


@both_clients
def test_none_there_is_stated_as_such(ask: Ask) -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9"):
        ask("http://127.0.0.1:9", lambda client: client.create_key({"name": "k", "role": "operator"}))


@both_clients
def test_another_at_the_address_is_stated_as_such(ask: Ask) -> None:
    page = Answer(200, headers={"Content-Type": "text/html"}, raw=b"<html>Welcome to your router</html>")
    with (
        serving(lambda _asked, _number: page) as server,
        pytest.raises(UnreachableError, match="is it the control plane's address"),
    ):
        ask(server.url, lambda client: client.whoami())


@both_clients
def test_the_answer_to_a_manifest_may_take_longer_than_others(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[dict[str, float]] = []

    def answer(_transport: object, request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"])
        return httpx.Response(200, json={})

    async def answer_async(transport: object, request: httpx.Request) -> httpx.Response:
        return answer(transport, request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", answer_async)
    for work in (lambda client: client.begin_bundle(b"[1, []]"), lambda client: client.content_limits()):
        ask("http://127.0.0.1:9", work)
    assert [limit["read"] for limit in limits] == [MANIFEST_S, REQUEST_TIMEOUT_S]
    assert [limit["connect"] for limit in limits] == [CONNECT_TIMEOUT_S] * 2


@both_clients
def test_pages_are_walked_to_their_end(ask: Ask) -> None:
    def answer(requested: Requested, number: int) -> Answer:
        assert ("cursor=c1" in requested.path) == (number == 1)
        return Answer(200, {"items": [{"id": f"job_{number}"}], "next_cursor": "c1" if number == 0 else None})

    with serving(answer) as server:
        found = ask(server.url, lambda client: client.jobs(limit=1, state=["QUEUED", "HELD"]))
        assert [job["id"] for job in found] == ["job_0", "job_1"]
        assert all("state=QUEUED&state=HELD" in asked.path for asked in server.requested)


@both_clients
def test_events_are_walked_by_their_position_until_nothing_is_new(ask: Ask) -> None:
    def answer(requested: Requested, number: int) -> Answer:
        assert f"after={(7, 9)[number]}" in requested.path
        items = [{"position": 8}, {"position": 9}] if number == 0 else []
        return Answer(200, {"items": items, "next_after": 9})

    with serving(answer) as server:
        assert [event["position"] for event in ask(server.url, lambda client: client.events(after=7))] == [8, 9]


@both_clients
def test_a_value_in_a_path_never_leaves_its_place(ask: Ask) -> None:
    with serving(lambda _asked, _number: Answer(200, {})) as server:
        ask(server.url, lambda client: client.cohort("H100/80 GB?x=../y"))
        assert server.requested[0].path == "/v1/cohorts/H100%2F80%20GB%3Fx%3D..%2Fy"


def _piece(position: int) -> bytes:
    return f'id: {position}\nevent: log\ndata: {{"position": {position}}}\n\n'.encode()


@both_clients
def test_a_broken_stream_goes_on_where_it_broke_and_repeats_nothing(ask: Ask) -> None:
    def answer(requested: Requested, number: int) -> Answer:
        if number == 0:
            # The connection ends before its word is kept.
            return Answer(200, headers={**STREAM, "Content-Length": "10000"}, raw=_piece(1) + _piece(2))
        assert requested.headers["last-event-id"] == "2"
        return Answer(200, headers=STREAM, raw=_piece(3) + b'event: end\ndata: {"state": "SUCCEEDED"}\n\n')

    with serving(answer) as server:
        assert [data["position"] for data in ask(server.url, lambda client: client.follow_logs("job_1"))] == [1, 2, 3]


@both_clients
def test_a_stream_that_ends_before_its_end_goes_on_too_also_where_nothing_had_come(ask: Any) -> None:
    def answer(requested: Requested, number: int) -> Answer:
        if number == 0:
            return Answer(200, headers=STREAM, raw=b"id: 41\n\n: still here\n\n")
        assert requested.headers["last-event-id"] == "41"
        return Answer(200, headers=STREAM, raw=b'id: 42\nevent: job.queued\ndata: {"position": 42}\n\n')

    with serving(answer) as server:
        found = ask(server.url, lambda client: client.follow_events(), at_most=1)
        assert [event["position"] for event in found] == [42]
        assert "after" not in server.requested[0].path


@both_clients
def test_a_stream_whose_place_is_no_longer_kept_ends_with_the_problem(ask: Ask) -> None:
    with serving(lambda _asked, _number: problem(410, "cursor_expired")) as server:
        with pytest.raises(Problem, match="cursor_expired"):
            ask(server.url, lambda client: client.follow_events(after=1))
        assert len(server.requested) == 1


def test_both_clients_have_the_same_calls_with_their_words() -> None:
    calls = {name for name in dir(RestClient) if not name.startswith("_") and name != "close"}
    assert calls == {name for name in dir(AsyncRestClient) if not name.startswith("_") and name != "close"}
    with RestClient("http://127.0.0.1:9", "mst_x") as client:
        for name in calls:
            assert inspect.getdoc(getattr(client, name)), name
        assert list(inspect.signature(client.job).parameters) == ["self", "job_id"]


def test_certificates_are_read_for_https_alone_and_http_trusts_none() -> None:
    missing = Path("/nowhere/ca.pem")
    for ca_file in (None, missing):
        found = trusted("http://127.0.0.1:8420", ca_file)
        assert isinstance(found, ssl.SSLContext)
        assert (found.get_ca_certs(), found.verify_mode, found.check_hostname) == ([], ssl.CERT_REQUIRED, True)
    assert trusted("HTTPS://muster.example", None) is True
    with pytest.raises(FileNotFoundError):
        trusted("https://muster.example", missing)


@both_clients
def test_each_request_names_the_clients_version(ask: Ask) -> None:
    with serving(lambda _asked, _number: Answer(200, JOB, {"Muster-Version": __version__})) as server:
        ask(server.url, lambda client: client.job("job_1"))
        assert server.requested[0].headers["muster-client-version"] == __version__


@both_clients
@pytest.mark.parametrize("version", ["7.0.0", "0.9.0"])
def test_a_server_of_a_release_that_does_not_fit_is_refused_with_what_to_install(ask: Ask, version: str) -> None:
    with serving(lambda _asked, _number: Answer(200, JOB, {"Muster-Version": version})) as server:
        with pytest.raises(Problem) as caught:
            ask(server.url, lambda client: client.job("job_1"))
        assert (caught.value.status, caught.value.code) == (426, "client_version")
        assert f"the control plane, which is {version}" in caught.value.detail
        assert f"pip install --upgrade -r {server.url}/install/client.txt" in caught.value.suggestion
        assert len(server.requested) == 1


@both_clients
@pytest.mark.parametrize("headers", [{}, {"Muster-Version": "unknown"}], ids=["none", "unknown"])
def test_a_server_that_names_no_version_is_accepted(ask: Ask, headers: dict[str, str]) -> None:
    with serving(lambda _asked, _number: Answer(200, JOB, headers)) as server:
        assert ask(server.url, lambda client: client.job("job_1"))["id"] == "job_1"
