"""A job's ETag stands for all that its document tells: its hosts' parts as well."""

from muster.wire.host import HOST_WORDS
from tests.api.conftest import Api
from tests.played_host import PlayedHost, played_host


def test_a_host_that_gets_ready_is_told_of_again(api: Api) -> None:
    first, second = PlayedHost(api.units, api.fleet.node_id, boot_id="boot-of-alpha"), played_host(api.units, "beta")
    job_id = api.fleet.submit(shape={"nodes": 2})
    for host in (first, second):
        host.beat()
    api.fleet.cycle()
    attempt = api.fleet.attempts(job_id)[-1].attempt
    for host in (first, second):
        assert host.claim(attempt.id, attempt.fence, knows=tuple(HOST_WORDS)).granted
    tag = api.client.get(f"/v1/jobs/{job_id}", headers=api.headers()).headers["etag"]
    asked = {**api.headers(), "If-None-Match": tag}
    assert api.client.get(f"/v1/jobs/{job_id}", headers=asked).status_code == 304
    first.report(attempt.id, attempt.fence, "ready")
    answer = api.client.get(f"/v1/jobs/{job_id}", headers=asked)
    assert answer.status_code == 200
    assert sum(part["ready_at"] is not None for part in answer.json()["attempts"][0]["hosts"]) == 1
