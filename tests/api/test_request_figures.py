"""Figures of requests in /metrics."""

import re

from tests.api.conftest import Api


def figures(api: Api) -> dict[str, float]:
    lines = api.client.get("/metrics", headers=api.headers("operator")).text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_requests_are_counted_by_route_method_and_status_and_timed_by_route(api: Api) -> None:
    before = figures(api)
    for _ in range(3):
        assert api.client.get("/v1/jobs", headers=api.headers()).status_code == 200
    assert api.client.get("/v1/jobs").status_code == 401
    after = figures(api)
    rises = {name: value - before.get(name, 0.0) for name, value in after.items() if "/v1/jobs" in name}
    assert rises['muster_api_requests_total{method="GET",route="/v1/jobs",status="200"}'] == 3
    assert rises['muster_api_requests_total{method="GET",route="/v1/jobs",status="401"}'] == 1
    assert rises['muster_api_request_seconds_count{route="/v1/jobs"}'] == 4
    assert rises['muster_api_request_seconds_sum{route="/v1/jobs"}'] > 0


def test_the_buckets_only_grow_and_end_with_all(api: Api) -> None:
    assert api.client.get("/v1/jobs", headers=api.headers()).status_code == 200
    name = re.compile(r'muster_api_request_seconds_bucket\{le="([^"]+)",route="/v1/jobs"\}')
    found = [(name.fullmatch(line), count) for line, count in figures(api).items()]
    buckets = sorted((float(match[1]), count) for match, count in found if match)
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert buckets[-1] == (float("inf"), figures(api)['muster_api_request_seconds_count{route="/v1/jobs"}'])


def test_what_a_caller_may_choose_makes_no_figure(api: Api) -> None:
    api.client.get("/no/such/path", headers=api.headers())
    api.client.request("BREW", "/v1/jobs", headers=api.headers())
    told = " ".join(figures(api))
    assert "BREW" not in told
    assert "/no/such/path" not in told
