"""Idempotency, preconditions, cursors, ids, methods, hosts and credentials."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from control.tenants import keys
from tests.api.conftest import GOOD_JOB, Api
from tests.fleet_factory import OPERATOR


def submit(api: Api, key: str | None = None, **changes: object) -> str:
    headers = api.headers() if key is None else {**api.headers(), "Idempotency-Key": key}
    answer = api.client.post("/v1/jobs", json={**GOOD_JOB, **changes}, headers=headers)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    return str(answer.json()["id"])


def num_jobs(api: Api) -> int:
    return len(api.client.get("/v1/jobs?limit=200", headers=api.headers()).json()["items"])


def test_a_repeated_key_gives_the_same_answer(api: Api) -> None:
    headers = {**api.headers(), "Idempotency-Key": "k1"}
    first, again = (api.client.post("/v1/jobs", json=GOOD_JOB, headers=headers) for _ in range(2))
    assert first.json() == again.json()
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    assert "idempotency-replayed" not in first.headers
    assert num_jobs(api) == 1


def test_a_key_with_another_body_or_path_is_refused(api: Api) -> None:
    job_id = submit(api, "k1")
    headers = {**api.headers(), "Idempotency-Key": "k1"}
    for path, body in (("/v1/jobs", {**GOOD_JOB, "name": "b"}), (f"/v1/jobs/{job_id}/cancel", {})):
        answer = api.client.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")


def test_one_key_fifty_times_at_once_is_one_job(api: Api) -> None:
    headers = {**api.headers(), "Idempotency-Key": "k1"}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: api.client.post("/v1/jobs", json=GOOD_JOB, headers=headers), range(50)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 201}) == 1
    assert num_jobs(api) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "schl\u00fcssel"])
def test_an_unusable_key_is_refused(api: Api, key: str) -> None:
    headers = {**api.headers(), "Idempotency-Key": key.encode("latin-1")}
    answer = api.client.post("/v1/jobs", json=GOOD_JOB, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_idempotency_key")


def test_a_refused_request_does_not_use_up_its_key(api: Api) -> None:
    headers = {**api.headers(), "Idempotency-Key": "k1"}
    assert api.client.post("/v1/jobs", json={"name": "A"}, headers=headers).status_code == 422
    assert api.client.post("/v1/jobs", json=GOOD_JOB, headers=headers).status_code == 201


def test_a_dry_run_states_its_consequences_and_changes_nothing(api: Api) -> None:
    answer = api.client.post("/v1/jobs?dry_run=true", json=GOOD_JOB, headers=api.headers())
    assert answer.status_code == 200
    assert [item["kind"] for item in answer.json()["consequences"]] == ["job.queued"]
    (job,) = answer.json()["effect"]["jobs"]
    assert (job["name"], job["tenant"]) == ("train", "acme")
    assert (job["effect"], job["onward"]["outcome"]) in {("starts", "starts"), ("waits", "waits")}
    assert num_jobs(api) == 0


def test_etags_answer_unchanged_objects_briefly(api: Api) -> None:
    path = f"/v1/jobs/{submit(api)}"
    etag = api.client.get(path, headers=api.headers()).headers["etag"]
    assert api.client.get(path, headers={**api.headers(), "If-None-Match": etag}).status_code == 304
    api.client.post(f"{path}/cancel", json={}, headers=api.headers())
    assert api.client.get(path, headers={**api.headers(), "If-None-Match": etag}).status_code == 200


def test_a_stale_precondition_is_refused_and_a_missing_one_requested(api: Api) -> None:
    job = f"/v1/jobs/{submit(api)}/cancel"
    assert api.client.post(job, json={}, headers={**api.headers(), "If-Match": '"v99"'}).status_code == 412
    key = f"/v1/keys/{api.key_ids['tenant_member']}"
    admin = api.headers("tenant_admin")
    assert api.client.delete(key, headers=admin).status_code == 428
    assert api.client.delete(key, headers={**admin, "If-Match": '"v9"'}).status_code == 412
    assert api.client.delete(key, headers={**admin, "If-Match": "nonsense"}).status_code == 422


def test_pages_show_each_job_once(api: Api) -> None:
    made = {submit(api, name=f"job-{number}") for number in range(16)}
    seen: list[str] = []
    path = "/v1/jobs?limit=7"
    while path:
        page = api.client.get(path, headers=api.headers()).json()
        seen += [job["id"] for job in page["items"]]
        path = f"/v1/jobs?limit=7&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert len(seen) == len(set(seen))
    assert set(seen) == made


def test_a_cursor_is_good_for_its_own_query_alone(api: Api) -> None:
    for number in range(3):
        submit(api, name=f"job-{number}")
    cursor = api.client.get("/v1/jobs?limit=1", headers=api.headers()).json()["next_cursor"]
    other = api.headers("other_tenant")
    for path, headers in (
        (f"/v1/jobs?limit=1&state=QUEUED&cursor={cursor}", api.headers()),
        (f"/v1/jobs?cursor={cursor[:-2]}xx", api.headers()),
        ("/v1/jobs?cursor=!!!", api.headers()),
        (f"/v1/jobs?cursor={cursor}", other),
    ):
        answer = api.client.get(path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor"), path


@pytest.mark.parametrize("query", ["limit=-1", "limit=1000000000", "limit=x", "state=NONSENSE", "name=A%2FB"])
def test_parameters_are_checked(api: Api, query: str) -> None:
    assert api.client.get(f"/v1/jobs?{query}", headers=api.headers()).status_code == 422


@pytest.mark.parametrize(
    "job_id", ["job_00000000000000000000000000", "1e3", "%00", "..%2f", "%252e", "9223372036854775808", "job_"]
)
def test_missing_and_malformed_ids_are_the_same_404(api: Api, job_id: str) -> None:
    answer = api.client.get(f"/v1/jobs/{job_id}", headers=api.headers())
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_another_tenants_job_resembles_a_missing_one(api: Api) -> None:
    job_id = submit(api, name="canary-name")
    missing = "job_00000000000000000000000000"
    other = api.headers("other_tenant")
    for suffix in ("", "/logs", "/events"):
        mine, theirs = (api.client.get(f"/v1/jobs/{name}{suffix}", headers=other) for name in (missing, job_id))
        assert mine.status_code == theirs.status_code == 404
        volatile = {"instance", "request_id"}
        assert {k: v for k, v in mine.json().items() if k not in volatile} == {
            k: v for k, v in theirs.json().items() if k not in volatile
        }
    assert "canary" not in api.client.get("/v1/jobs", headers=other).text
    assert api.client.post(f"/v1/jobs/{job_id}/cancel", json={}, headers=other).status_code == 404


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE", "NONSENSE"])
def test_other_methods_are_reported_what_is_allowed(api: Api, method: str) -> None:
    answer = api.client.request(method, "/v1/jobs", headers=api.headers())
    assert answer.status_code == 405
    assert answer.headers["allow"]


@pytest.mark.parametrize("host", ["x/?", "evil.example", "127.0.0.1:80:80", ""])
def test_a_strange_host_header_is_refused(api: Api, host: str) -> None:
    answer = api.client.get("/v1/jobs", headers={**api.headers(), "Host": host})
    assert answer.status_code == 400


def test_credentials_fail_alike_whatever_is_wrong(api: Api) -> None:
    token = api.tokens["tenant_member"]
    typo = token[:-1] + ("a" if token[-1] != "a" else "b")
    for value in ("", "Bearer", "Bearer x", f"Basic {token}", f"Bearer {typo}", f"Bearer {token} ", f"Bearer  {token}"):
        answer = api.client.get("/v1/whoami", headers={"Authorization": value})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), value
        assert answer.headers["www-authenticate"]
    twice = [("Authorization", f"Bearer {token}"), ("Authorization", f"Bearer {token}")]
    assert api.client.get("/v1/whoami", headers=twice).status_code == 401
    assert api.client.get("/v1/whoami", headers={"authorization": f"bearer {token}"}).status_code == 200


def test_a_revoked_key_opens_nothing_from_the_next_request_on(api: Api) -> None:
    assert api.client.get("/v1/whoami", headers=api.headers()).status_code == 200
    with api.units.begin(OPERATOR, keys.REVOKE) as unit:
        keys.revoke(unit, api.key_ids["tenant_member"])
    assert api.client.get("/v1/whoami", headers=api.headers()).status_code == 401


def test_a_tenant_makes_no_key_stronger_than_its_own(api: Api) -> None:
    for wanted in ({"role": "operator"}, {"role": "tenant_member", "tenant_id": api.other_tenant}):
        answer = api.client.post("/v1/keys", json={"name": "k", **wanted}, headers=api.headers("tenant_admin"))
        assert answer.status_code == 403
    made = api.client.post("/v1/keys", json={"name": "k", "role": "tenant_member"}, headers=api.headers("tenant_admin"))
    assert made.json()["token"].startswith("mst_")
    listed = api.client.get("/v1/keys", headers=api.headers("tenant_admin")).text
    assert made.json()["token"] not in listed
