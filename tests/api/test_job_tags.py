"""A job's ETag stands for all that its document shows: its hosts' parts as well."""

from muster.wire.host import HOST_CAPABILITIES
from tests.api.conftest import Api
from tests.fleet_factory import enrol_host
from tests.played_host import PlayedHost, played_host


def test_a_host_that_gets_ready_is_notified_of_again(api: Api) -> None:
    first, second = PlayedHost(api.units, api.fleet.node_id, boot_id="boot-of-alpha"), played_host(api.units, "beta")
    job_id = api.fleet.submit(shape={"nodes": 2})
    for host in (first, second):
        host.beat()
    api.fleet.cycle()
    attempt = api.fleet.attempts(job_id)[-1].attempt
    for host in (first, second):
        assert host.claim(attempt.id, attempt.fence, capabilities=tuple(HOST_CAPABILITIES)).granted
    tag = api.client.get(f"/v1/jobs/{job_id}", headers=api.headers()).headers["etag"]
    asked = {**api.headers(), "If-None-Match": tag}
    assert api.client.get(f"/v1/jobs/{job_id}", headers=asked).status_code == 304
    first.report(attempt.id, attempt.fence, "ready")
    answer = api.client.get(f"/v1/jobs/{job_id}", headers=asked)
    assert answer.status_code == 200
    assert sum(part["ready_at"] is not None for part in answer.json()["attempts"][0]["hosts"]) == 1


def test_other_counts_of_why_it_waits_are_another_body_and_no_other_version(api: Api) -> None:
    PlayedHost(api.units, enrol_host(api.units, "wide", num_gpus=8)).beat()
    api.fleet.submit(name="first", shape={"gpus_per_node": 1})
    api.fleet.cycle()
    job_id = api.fleet.submit(shape={"gpus_per_node": 8})
    api.fleet.cycle()
    tag = api.client.get(f"/v1/jobs/{job_id}", headers=api.headers()).headers["etag"]
    asked = {**api.headers(), "If-None-Match": tag}
    assert api.client.get(f"/v1/jobs/{job_id}", headers=asked).status_code == 304
    api.fleet.submit(name="other", tier="reserved", shape={"gpus_per_node": 1})
    api.fleet.cycle()
    api.fleet.cycle()
    again = api.client.get(f"/v1/jobs/{job_id}", headers=asked)
    assert again.status_code == 200, "one more of the GPUs is taken"
    assert again.headers["etag"].split(".")[0] == tag.split(".")[0]
    cancel = api.client.post(f"/v1/jobs/{job_id}/cancel", headers={**api.headers(), "If-Match": tag}, json={})
    assert cancel.status_code == 200


def test_a_change_of_a_job_hangs_on_the_tag_that_was_read_with_it(api: Api) -> None:
    job_id = api.fleet.submit()
    tag = api.client.get(f"/v1/jobs/{job_id}", headers=api.headers()).headers["etag"]
    path, asked = f"/v1/jobs/{job_id}/cancel", {**api.headers(), "If-Match": tag}
    for text in (tag.replace('"v', '"v."'), tag.strip('"'), f"W/{tag}", '"v1.2.3.4.5"', '"v1."'):
        refused = api.client.post(path, headers={**asked, "If-Match": text}, json={})
        assert (refused.status_code, refused.json()["detail"]) == (422, 'If-Match: must be an ETag such as "v3"')
    assert api.client.post(path, headers=asked, json={}).json()["state"] == "CANCELLED"
    assert api.client.post(path, headers=asked, json={}).status_code == 412
