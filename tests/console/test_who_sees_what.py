"""Every route of the console for every role, out of its declarations; and nothing of one tenant on another's pages."""

import itertools

import pytest

import console.app
from api.app import create_inner_app
from api.dependencies import AppDependencies
from api.permissions import declared_routes
from console.app import PREFIX
from muster.domain.principals import ROLE_PERMISSIONS, Role
from muster.domain.states import Standing
from muster.services.unit_of_work import UnitOfWorkFactory
from tests.console.conftest import Console

IDS = {
    "{job_id}": "job_00000000000000000000000000",
    "{key_id}": "key_00000000000000000000000000",
    "{person_id}": "prs_00000000000000000000000000",
    "{cordon_id}": "cdn_00000000000000000000000000",
    "{incident_id}": "inc_00000000000000000000000000",
    "{evidence_id}": "ev_00000000000000000000000000",
    "{uuid}": "GPU-none",
    "{node}": "nowhere",
    "{node_id}": "node_00000000000000000000000000",
    "{place}": "0",
    "{outcome}": "finish",
    "{name}": "quarantine",
    "{digest}": "0",
    "{name:path}": "console.css",
}
ROLES = {
    "operator": Role.OPERATOR,
    "auditor": Role.AUDITOR,
    "tenant_member": Role.TENANT_MEMBER,
    "tenant_admin": Role.TENANT_ADMIN,
}
CANARY = "canary-of-the-other-tenant"


def _routes(units: UnitOfWorkFactory) -> list[tuple[str, str, str]]:
    """Streams aside, which do not end."""
    app = create_inner_app(AppDependencies(units=units, secret_key=b"x" * 32), console.app.install)
    routes = [(method, path, words) for method, path, words in declared_routes(app) if path.startswith(PREFIX)]
    return [route for route in routes if not route[1].endswith(("/live", "/stream"))]


def _fill(path: str) -> str:
    for name, value in IDS.items():
        path = path.replace(name, value)
    assert "{" not in path, f"give {path} an id to be asked with"
    return path


def test_each_page_and_change_answers_each_role_as_declared(seen: Console) -> None:
    tokens = {name: seen.csrf(name) for name in ROLES}
    for (method, path, words), name in itertools.product(_routes(seen.units), [*ROLES, None]):
        where = _fill(path)
        if path.endswith("/sign-out"):
            continue  # it would end the session that the others are asked with
        answer = (
            seen.get(where, name)
            if method == "GET"
            else seen.post(where, name, csrf="" if name is None else tokens[name], reason="to see", step="preview")
        )
        case = (method, path, words, name, answer.status_code)
        assert answer.status_code < 500, case
        if words.startswith("public"):
            assert answer.status_code != 403, case
            assert not answer.headers.get("location", "").startswith("/console/sign-in"), case
        elif name is None:
            assert answer.status_code == 303, case
            assert answer.headers["location"].startswith("/console/sign-in"), case
        else:
            held = {str(permission) for permission in ROLE_PERMISSIONS[ROLES[name]]}
            is_allowed = words == "signed in" or words in held
            assert (answer.status_code == 403) == (not is_allowed), case


def test_no_page_of_a_tenant_shows_anothers_job(seen: Console) -> None:
    job_id = seen.fleet.submit(name=CANARY)
    seen.fleet.beat()
    seen.fleet.cycle()
    gpu = seen.fleet.attempts(job_id)[0].hosts[0].gpus[0]
    pages = ["", "/jobs", "/reclaims", "/events", "/find?q=canary", "/fleet/map", f"/jobs/{job_id}", f"/gpus/{gpu}"]
    for page in pages:
        found = seen.get(f"/console{page}", "other_tenant")
        assert found.status_code in {200, 404}, page
        assert CANARY.encode() not in found.content.replace(b"canary", b"", 0) or page.startswith("/find"), page
        assert job_id.encode() not in found.content, page
    assert seen.get(f"/console/jobs/{job_id}", "other_tenant").status_code == 404
    assert seen.get(f"/console/gpus/{gpu}", "other_tenant").status_code == 404
    assert seen.get(f"/console/gpus/{gpu}", "tenant_member").status_code == 200
    assert CANARY in seen.text("/console/find?q=canary", "tenant_member") or seen.get(
        "/console/find?q=canary", "tenant_member"
    ).headers["location"].endswith(job_id)


@pytest.mark.parametrize("standing", ["", *Standing])
def test_each_standing_can_be_asked_for_and_any_of_them(seen: Console, standing: str) -> None:
    assert seen.get(f"/console/gpus?standing={standing}").status_code == 200


@pytest.mark.parametrize(
    "page",
    [
        "/gpus?standing=BROKEN",
        "/gpus?cursor=x",
        "/events?cursor=zz",
        "/audit?cursor=%00",
        "/nodes?cursor=x",
        "/gpus/%00",
        "/gpus/" + "x" * 300,
        "/jobs/job_x",
        "/fleet/at/x/-1",
        "/fleet/at/x/99999999999999999999",
        "/find?q=%00",
        "/find?q=" + "x" * 300,
        "/nowhere",
    ],
)
def test_a_bad_address_is_a_page_that_says_so(seen: Console, page: str) -> None:
    answer = seen.get(f"/console{page}")
    assert answer.status_code in {200, 400, 404, 422}, page
    assert answer.headers["content-type"].startswith("text/html")
    assert "Traceback" not in answer.text
