"""Environments by the API: a host asks, builds and fails; the tenant alone reads why."""

from typing import Any

from sqlalchemy import select

from muster.content.manifest import digest_of
from muster.db.models import Event, PlacementPreflight
from muster.wire.host import HOST_CAPABILITIES
from tests.api.conftest import GOOD_JOB, Api
from tests.api.test_bundles import begin, confirm, manifest

KEY = "a1" * 32
RECIPE = {"interpreter": "cpython-3.11", "platform": "linux_x86_64"}


def submitted(api: Api) -> str:
    content = manifest(b"one")
    begun = begin(api, content)
    confirm(api, begun["digest"], [upload["digest"] for upload in begun["uploads"]])
    program = {"script": "file000000", "bundle": digest_of(content), "environment": {"lock": "uv.lock"}}
    answer = api.client.post("/v1/jobs", json={**GOOD_JOB, "program": program}, headers=api.headers())
    assert answer.status_code == 201, answer.text
    assert answer.json()["spec"]["program"]["environment"]["lock"] == "uv.lock"
    return str(answer.json()["id"])


def requested(api: Api, job_id: str) -> PlacementPreflight:
    """Let the host beat and the scheduler ask it, and return what it is asked."""
    beat = {"protocol": 1, "boot_id": "boot-1", "seq": next(api.fleet.beats), "knows": list(HOST_CAPABILITIES)}
    assert api.client.post("/v1/hosts/self/heartbeat", json=beat, headers=api.headers("node")).status_code == 200
    api.fleet.cycle()
    with api.units.read() as session:
        return session.get_one(PlacementPreflight, job_id)


def ask(api: Api, path: str, body: dict[str, Any], expected: int = 200) -> Any:
    answer = api.client.post(
        f"/v1/hosts/self/attempts/{path}", json={"protocol": 1, **body}, headers=api.headers("node")
    )
    assert answer.status_code == expected, answer.text
    return answer.json()


def test_the_tenant_reads_why_its_environment_could_not_be_built(api: Api) -> None:
    job_id = submitted(api)
    url = f"/v1/jobs/{job_id}/environments"
    assert api.client.get(url, headers=api.headers()).json() == {"items": []}
    look = requested(api, job_id)
    at, fence = f"{look.preflight_id}/environments/{KEY}", {"fence": look.number}
    answer = ask(api, at, {**fence, **RECIPE})
    assert (answer["state"], answer["lease_s"]) == ("build", 60)
    failure = {"words": "line 3: no wheel", "line": 3, "log": "error: no wheel", "is_final": True}
    assert ask(api, f"{at}/failed", {**fence, **failure}) == {"accepted": True}
    assert ask(api, at, {**fence, **RECIPE})["words"] == "line 3: no wheel"
    [build] = api.client.get(url, headers=api.headers()).json()["items"]
    assert (build["key"], build["state"], build["line"], build["log"]) == (KEY, "failed", 3, "error: no wheel")
    assert (build["node_name"], build["interpreter"]) == ("alpha", "cpython-3.11")
    assert api.client.get(url, headers=api.headers("other_tenant")).status_code == 404
    with api.units.read() as session:
        kinds = set(session.scalars(select(Event.kind).where(Event.subject_id == job_id)))
    assert kinds >= {"job.environment_building", "job.environment_failed"}


def beat(api: Api, *more: str) -> None:
    known = [*HOST_CAPABILITIES, *more]
    body = {"protocol": 1, "boot_id": "boot-1", "seq": next(api.fleet.beats), "knows": known}
    assert api.client.post("/v1/hosts/self/heartbeat", json=body, headers=api.headers("node")).status_code == 200


def planned(api: Api, **environment: Any) -> str | None:
    """Return what a plan states of a job's environment."""
    program = {"script": "train.py", "bundle": "a" * 64, "environment": {"lock": "uv.lock", **environment}}
    answer = api.client.post("/v1/job-plans", json={**GOOD_JOB, "program": program}, headers=api.headers())
    assert answer.status_code == 200, answer.text
    found: str | None = answer.json()["environment"]
    return found


def builders(api: Api) -> tuple[int, int]:
    found = api.client.get("/v1/content", headers=api.headers()).json()
    return found["num_package_hosts"], found["num_source_hosts"]


def test_a_plan_states_that_no_host_builds_environments(api: Api) -> None:
    beat(api)
    assert "none in contact has a package index or a wheelhouse" in str(planned(api))
    assert builders(api) == (0, 0)
    beat(api, "packages")
    assert planned(api) is None
    assert "no host builds source distributions" in str(planned(api, allows_source=True))
    assert builders(api) == (1, 0)
    beat(api, "packages", "source_packages")
    assert planned(api, allows_source=True) is None
    assert builders(api) == (1, 1)
    plain = api.client.post("/v1/job-plans", json=GOOD_JOB, headers=api.headers()).json()
    assert plain["environment"] is None


def test_what_no_host_of_ours_sends_is_refused(api: Api) -> None:
    look = requested(api, submitted(api))
    fence = {"fence": look.number}
    at = f"{look.preflight_id}/environments"
    ask(api, f"{at}/{'A1' * 32}", {**fence, **RECIPE}, 422)
    ask(api, f"{at}/{KEY}", {**fence, **RECIPE, "built": "b" * 64}, 404)
    ask(api, f"{at}/{KEY}", {"fence": look.number + 1, **RECIPE}, 409)
    words = {"words": "x" * 5_000, "is_final": True}
    ask(api, f"{at}/{KEY}/failed", {**fence, **words}, 422)
