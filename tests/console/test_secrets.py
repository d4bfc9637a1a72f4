"""Pages of secrets: names, versions and reads are shown; a value is written, and is in no answer."""

import re

import httpx
import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

import console.app
from api.app import create_app
from api.dependencies import AppDependencies
from control.hosts import secret_delivery
from control.secrets.job_secrets import values_for
from muster.db.models import AuditEntry, JobSecret, Secret
from muster.domain.ids import AttemptId, JobId, TenantId
from muster.wire.host import HOST_CAPABILITIES, PROTOCOL_VERSION, SecretsRequest
from tests.console.conftest import Console
from tests.console.test_plans import submit
from tests.control.secrets.secret_case import set_secret
from tests.played_host import PlayedHost

VALUE = "canary-of-a-value"


def set_by_page(seen: Console, actor: str = "tenant_admin", **fields: str) -> httpx.Response:
    answer = seen.post("/console/secrets", actor, step="do", **{"name": "hf-token", "value": VALUE, **fields})
    assert VALUE not in answer.text
    return answer


def secret_id(seen: Console, name: str = "hf-token") -> str:
    with seen.units.read() as session:
        return session.scalars(select(Secret.id).where(Secret.name == name)).one()


def value_of(seen: Console, name: str = "hf-token") -> bytes:
    """What a job that names it would get now."""
    with seen.units.read() as session:
        job_id = submit(seen, f"names-{name}", secrets=[name])
        assert session.get(JobSecret, (job_id, name)) is not None
        (found,) = values_for(session, job_id, f"names-{name}", seen.fleet.tenant_id, seen.units.clock())
        return found.opened(seen.secret_keys)


def test_a_secret_that_is_set_is_listed_and_delivered_and_its_value_is_shown_nowhere(seen: Console) -> None:
    answer = set_by_page(seen, value=f"{VALUE}\r\nof two lines", jobs="train, names-hf-token")
    assert answer.status_code == 303
    assert value_of(seen) == f"{VALUE}\nof two lines".encode(), "the line ends of a file"
    for actor in ("tenant_admin", "tenant_member", "operator"):
        for path in ("/console/secrets", f"/console/secrets/{secret_id(seen)}", "/console/audit", "/console/events"):
            assert VALUE not in seen.get(path, actor).text
    assert "hf-token" in seen.text("/console/secrets", "tenant_member")
    assert "train, names-hf-token" in seen.text("/console/secrets", "tenant_member")


def test_another_tenant_sees_nothing_of_it(seen: Console) -> None:
    set_by_page(seen)
    assert "hf-token" not in seen.text("/console/secrets", "other_tenant")
    assert seen.get(f"/console/secrets/{secret_id(seen)}", "other_tenant").status_code == 404


def test_a_rotation_is_previewed_then_done_with_its_reason(seen: Console) -> None:
    set_by_page(seen)
    where = f"/console/secrets/{secret_id(seen)}"
    typed = {"value": "the-next", "reason": "it leaked"}
    would = seen.post(f"{where}/rotate", "tenant_admin", step="preview", **typed)
    assert "Nothing is changed yet" in would.text
    assert "the-next" not in would.text
    assert value_of(seen) == VALUE.encode()
    done = seen.post(f"{where}/rotate", "tenant_admin", step="do", **typed)
    assert done.status_code == 303
    assert value_of(seen) == b"the-next"
    page = seen.text(where, "tenant_admin")
    assert "Stored versions" in page
    assert "Version 2 " in page
    with seen.units.read() as session:
        reasons = session.scalars(select(AuditEntry.reason).where(AuditEntry.action == "secret.rotate")).all()
    assert list(reasons) == ["it leaked"]


def test_a_deletion_needs_its_typed_name(seen: Console) -> None:
    set_by_page(seen)
    where = f"/console/secrets/{secret_id(seen)}/delete"
    assert seen.post(where, "tenant_admin", step="preview", reason="old").status_code == 200
    refused = seen.post(where, "tenant_admin", step="do", reason="old", typed="other")
    assert refused.status_code == 422
    assert "type hf-token to confirm" in refused.text
    assert seen.post(where, "tenant_admin", step="do", reason="old", typed="hf-token").status_code == 303
    assert "No secret" in seen.text("/console/secrets", "tenant_admin")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "With Space"}, "/name"),
        ({"value": ""}, "a secret has at least one byte"),
        ({"value": f"{VALUE}" * 4_000}, "a secret may have 65,536 (64 KiB)"),
        ({"jobs": "Not A Name"}, "/jobs"),
    ],
)
def test_what_no_secret_can_be_is_refused_without_its_value(seen: Console, fields: dict[str, str], words: str) -> None:
    answer = set_by_page(seen, **fields)
    assert answer.status_code == 422
    assert words in answer.text


def test_a_name_that_is_taken_is_refused(seen: Console) -> None:
    set_by_page(seen)
    again = set_by_page(seen)
    assert again.status_code == 409
    assert "the tenant has a secret hf-token already" in again.text


def test_a_member_reads_names_and_changes_nothing(seen: Console) -> None:
    set_by_page(seen)
    page = seen.get(f"/console/secrets/{secret_id(seen)}", "tenant_member").text
    assert "Rotate" not in page
    assert "Reads by hosts" not in page, "the audit is for the tenant's admin"
    assert "Set a secret" not in seen.text("/console/secrets", "tenant_member")
    assert set_by_page(seen, "tenant_member", name="mine").status_code == 403
    assert seen.get("/console/secrets", "auditor").status_code == 403


def test_an_operator_sets_one_for_a_tenant(seen: Console) -> None:
    assert set_by_page(seen, "operator").status_code == 422
    assert set_by_page(seen, "operator", tenant_id=seen.fleet.tenant_id).status_code == 303
    assert "hf-token" in seen.text("/console/secrets", "operator")


def test_a_read_by_a_host_is_shown_with_its_job_and_host(seen: Console) -> None:
    set_by_page(seen)
    assert "never" in seen.text("/console/secrets", "tenant_member")
    job_id = _delivered(seen)
    listed = seen.text("/console/secrets", "tenant_member")
    assert re.search(r"s ago 1 all", listed), "when it was read last, and its open job"
    page = seen.get(f"/console/secrets/{secret_id(seen)}", "tenant_admin").text
    assert f'href="/console/jobs/{job_id}"' in page
    assert seen.fleet.node_id in page


def _delivered(seen: Console) -> JobId:
    """A host claims an attempt of a job that names the secret, and asks for it."""
    host = PlayedHost(seen.units, seen.fleet.node_id)
    host.beat(capabilities=HOST_CAPABILITIES)
    job_id = submit(seen, "reader", secrets=["hf-token"])
    seen.fleet.cycle()
    host.beat(capabilities=HOST_CAPABILITIES)
    seen.fleet.cycle()
    attempt = seen.fleet.attempts(job_id)[-1].attempt
    assert host.claim(attempt.id, attempt.fence, capabilities=HOST_CAPABILITIES).granted
    request = SecretsRequest(
        protocol=PROTOCOL_VERSION, boot_id=host.boot_id, fence=attempt.fence, public_key=bytes([9]) + bytes(31)
    )
    with seen.units.begin(host.principal, secret_delivery.READ) as unit:
        delivery = secret_delivery.read_for_host(unit, AttemptId(attempt.id), request)
    assert delivery.sealed(seen.secret_keys).missing == ()
    return job_id


def test_many_secrets_come_a_page_at_a_time(seen: Console) -> None:
    for number in range(101):
        set_secret(seen.units, seen.secret_keys, TenantId(seen.fleet.tenant_id), f"many-{number:03}", b"v")
    page = seen.get("/console/secrets", "tenant_member").text
    assert "many-099" in page
    assert "many-100" not in page
    older = page.partition('<a class="button" href="')[2].partition('"')[0].replace("&amp;", "&")
    assert "many-100" in seen.text(older, "tenant_member")


def test_without_keys_the_page_states_that_none_can_be_kept(seen: Console) -> None:
    app = create_app(AppDependencies(units=seen.units, secret_key=b"x" * 32), console.app.install)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        without = Console(client, seen.fleet, seen.units, seen.other_tenant, seen.cookies)
        page = without.text("/console/secrets", "tenant_admin")
        assert "its operator has not set a file of keys" in page
        assert "Set a secret" not in page
        assert set_by_page(without).status_code == 503
