"""Secrets by REST: written by their tenant, listed without values, and never repeated in an answer or a log."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from starlette.testclient import TestClient

from api import serve
from api.app import create_app
from api.dependencies import AppDependencies
from control.core.unit_of_work import UnitOfWorkFactory
from muster.db.models import AuditEntry, SecretVersion
from muster.settings import SettingsError, load_settings, make_secret_key_file, make_secret_keys_file
from tests.api.conftest import GOOD_JOB, Api
from tests.keyed_fleet import make_keyed_fleet

VALUE = "s3cr3t-0f-acme-hf-token"


def set_secret(api: Api, name: str = "hf-token", actor: str = "tenant_admin", **more: Any) -> Any:
    body = {"name": name, "value": VALUE, **more}
    return api.client.post("/v1/secrets", json=body, headers=api.headers(actor))


def test_a_secret_is_set_listed_rotated_and_deleted_and_no_answer_has_its_value(api: Api) -> None:
    made = set_secret(api, jobs=["train"])
    assert (made.status_code, made.headers["ETag"]) == (201, '"v1"')
    secret_id = made.json()["id"]
    listed = api.client.get("/v1/secrets", headers=api.headers())
    shown = api.client.get(f"/v1/secrets/{secret_id}", headers=api.headers())
    assert listed.json()["items"] == [shown.json()]
    assert shown.json() == made.json() | {"created_by": "key:key-tenant-admin"}
    encoded = {"value": base64.b64encode(b"\x00\xffnew").decode(), "encoding": "base64"}
    path = f"/v1/secrets/{secret_id}/rotate"
    rotated = api.client.post(path, json=encoded, headers={**api.headers("tenant_admin"), "If-Match": '"v1"'})
    assert (rotated.status_code, rotated.json()["version"]) == (200, 2)
    stale = api.client.post(path, json=encoded, headers={**api.headers("tenant_admin"), "If-Match": '"v1"'})
    assert stale.status_code == 412
    deleted = api.client.delete(f"/v1/secrets/{secret_id}", headers=api.headers("tenant_admin"))
    assert deleted.status_code == 200
    assert api.client.get("/v1/secrets", headers=api.headers()).json()["items"] == []
    answers = (made, listed, shown, rotated, stale, deleted)
    assert not [each for each in answers if VALUE in each.text or encoded["value"] in each.text]
    with api.units.read() as session:
        actions = session.scalars(select(AuditEntry.action).where(AuditEntry.subject_id == secret_id)).all()
    assert sorted(actions) == ["secret.create", "secret.delete", "secret.rotate"]


def test_a_dry_run_stores_nothing(api: Api) -> None:
    body = {"name": "hf-token", "value": VALUE}
    tried = api.client.post("/v1/secrets?dry_run=true", json=body, headers=api.headers("tenant_admin"))
    assert (tried.status_code, tried.json()["dry_run"]) == (200, True)
    assert api.client.get("/v1/secrets", headers=api.headers()).json()["items"] == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": "Hf Token"}, "/name"),
        ({"name": "../x"}, "/name"),
        ({"value": ""}, "/value"),
        ({"value": VALUE * 4_000}, "/value"),
        ({"value": VALUE + "!", "encoding": "base64"}, "/value"),
        ({"value": 7}, "/value"),
        ({"value": [VALUE]}, "/value"),
        ({"jobs": ["Not A Name"]}, "/jobs/0"),
        ({"token": VALUE}, "/token"),
    ],
)
def test_what_is_refused_is_named_and_not_repeated(
    api: Api, body: dict[str, Any], pointer: str, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = set_secret(api, **body)
    assert answer.status_code == 422
    assert pointer in [fault["pointer"] for fault in answer.json()["errors"]]
    assert VALUE not in answer.text + "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("name", "shown"), [("Hf Token", "'Hf Token'"), ("../x", "'../x'"), ("x" * 400, f"'{'x' * 63}\\u2026'"), ("", "''")]
)
def test_a_refused_name_is_shown(api: Api, name: str, shown: str) -> None:
    (fault,) = set_secret(api, name=name).json()["errors"]
    assert fault["pointer"] == "/name"
    assert fault["detail"].startswith(f"{shown} is no name: it must be 1 to 63 of a-z, 0-9")


def test_a_megabyte_is_refused_in_words(api: Api) -> None:
    answer = set_secret(api, value="x" * 1_000_000)
    assert answer.status_code == 422
    assert "has 1,000,000 bytes; a secret may have 65,536 (64 KiB)" in answer.json()["errors"][0]["detail"]


def test_the_keys_row_of_idempotency_holds_nothing_of_a_value(api: Api) -> None:
    headers = {**api.headers("tenant_admin"), "Idempotency-Key": "once"}
    body = {"name": "hf-token", "value": VALUE}
    assert api.client.post("/v1/secrets", json=body, headers=headers).status_code == 201
    again = api.client.post("/v1/secrets", json=body, headers=headers)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


def test_a_job_with_a_secret_that_is_not_there_is_refused_with_the_ones_that_are(api: Api) -> None:
    set_secret(api)
    set_secret(api, "of-eval", jobs=["eval"])
    api.fleet.beat()

    def submitted(**more: Any) -> Any:
        return api.client.post("/v1/jobs", json={**GOOD_JOB, **more}, headers=api.headers())

    # No host has reported yet whether its operator keeps files: a name may be one of these, as in the release before.
    assert submitted(secrets=["hf-tokne"]).status_code == 201
    _report_capabilities(api, "sealed_secrets")
    refused = submitted(secrets=["hf-tokne"])
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/secrets"
    detail = refused.json()["errors"][0]["detail"]
    assert "there is no secret hf-tokne; there are hf-token, of-eval" in detail
    assert "muster secret set hf-tokne" in detail
    limited = submitted(secret_env={"TOKEN": "of-eval"})
    assert "of-eval is only for jobs named eval, and this one is train" in limited.text
    planned = api.client.post("/v1/job-plans", json={**GOOD_JOB, "secrets": ["hf-tokne"]}, headers=api.headers())
    assert planned.status_code == 422
    assert submitted(secrets=["hf-token"], secret_env={"HF_TOKEN": "hf-token"}).status_code == 201
    _report_capabilities(api, "sealed_secrets", "laid_secrets")
    assert submitted(secrets=["laid-by-the-operator"]).status_code == 201


def _report_capabilities(api: Api, *capabilities: str) -> None:
    body = {"protocol": 1, "boot_id": "boot-1", "seq": next(api.fleet.beats), "knows": list(capabilities)}
    answer = api.client.post("/v1/hosts/self/heartbeat", json=body, headers=api.headers("node"))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"secret_env": {"MUSTER_JOB_ID": "a"}}, "MUSTER_JOB_ID is not a variable that a job may set"),
        ({"secret_env": {"LD_PRELOAD": "a"}}, "LD_PRELOAD is not a variable that a job may set"),
        ({"secret_env": {"A B": "a"}}, "secret_env"),
        ({"secret_env": {"TOKEN": "No Name"}}, "secret_env"),
        ({"secrets": ["a", "a"]}, "names a secret twice"),
        ({"secret_env": {"T": "a"}, "program": {"script": "/x.py", "env": {"T": "1"}}}, "T is in `program.env` too"),
        (
            {"secret_env": {"T": "a"}, "program": {"script": "/x.py", "container": {"image": "docker.io/a/b:1"}}},
            "a container's engine writes variables to a disk",
        ),
    ],
)
def test_uses_that_do_not_fit_are_refused(api: Api, spec: dict[str, Any], words: str) -> None:
    answer = api.client.post("/v1/jobs", json={**GOOD_JOB, **spec}, headers=api.headers())
    assert answer.status_code == 422
    assert words in answer.text


def test_a_job_is_stored_as_an_earlier_release_reads_it_unless_it_has_variables(api: Api) -> None:
    plain = api.client.post("/v1/jobs", json=GOOD_JOB, headers=api.headers()).json()
    assert "secret_env" not in plain["spec"]


def test_an_operator_sees_keys_by_id_and_brings_values_under_the_active_one(api: Api) -> None:
    set_secret(api)
    headers = api.headers("operator")
    assert api.client.get("/v1/secret-keys", headers=headers).json()["items"] == [
        {"key_id": "local-1", "is_active": True, "is_usable": True, "num_values": 1}
    ]
    path = api.key_file_of_secrets
    path.write_text(f"new {'1' * 64}\n" + path.read_text())
    done = api.client.post("/v1/secret-keys/rewrap", headers=headers)
    assert done.json() == {
        "key_id": "new",
        "num_rewrapped": 1,
        "num_left": 0,
        "num_unusable": 0,
        "needed_keys": [],
    }
    with api.units.read() as session:
        assert session.scalars(select(SecretVersion.key_id)).all() == ["new"]
    path.chmod(0o644)
    unusable = set_secret(api, "other")
    assert (unusable.status_code, unusable.json()["code"]) == (503, "secret_key_unusable")
    assert "has the mode 0644: set it to 0600" in unusable.json()["detail"]


def test_the_api_does_not_start_with_keys_that_others_can_read(tmp_path: Path) -> None:
    make_secret_key_file(tmp_path / "secret.key")
    make_secret_keys_file(tmp_path / "secrets.key")
    (tmp_path / "secrets.key").chmod(0o644)
    variables = {"SECRET_KEY_FILE": "secret.key", "SECRET_KEYS_FILE": "secrets.key"}
    settings = {f"MUSTER_{name}": str(tmp_path / file) for name, file in variables.items()}
    with pytest.raises(SettingsError, match="has the mode 0644: set it to 0600 or 0400") as refused:
        serve.run(load_settings({**settings, "MUSTER_DATABASE_URL": "postgresql:///nowhere"}))
    assert str(tmp_path / "secrets.key") in str(refused.value)


def test_without_keys_all_else_works(engine: Engine) -> None:
    units = UnitOfWorkFactory(engine)
    keyed = make_keyed_fleet(units)
    with TestClient(create_app(AppDependencies(units, b"x" * 32)), base_url="http://127.0.0.1") as client:
        headers = {"Authorization": f"Bearer {keyed.tokens['tenant_admin']}"}
        refused = client.post("/v1/secrets", json={"name": "a", "value": VALUE}, headers=headers)
        assert client.get("/v1/secrets", headers=headers).json()["items"] == []
        assert client.post("/v1/jobs", json=GOOD_JOB, headers=headers).status_code == 201
    assert (refused.status_code, refused.json()["code"]) == (503, "secret_key_unusable")
    assert "neither MUSTER_SECRET_KEYS_FILE nor Vault is set" in refused.json()["detail"]


def test_an_operator_names_the_tenant_and_a_tenant_only_itself(api: Api) -> None:
    unnamed = set_secret(api, actor="operator")
    assert unnamed.json()["errors"][0]["pointer"] == "/tenant_id"
    assert set_secret(api, actor="operator", tenant_id=api.fleet.tenant_id).status_code == 201
    foreign = set_secret(api, "x", actor="other_tenant", tenant_id=api.fleet.tenant_id)
    assert json.loads(foreign.text)["errors"][0]["code"] == "foreign_tenant"


def test_pages_hold_every_secret_once_by_tenant_and_name(api: Api) -> None:
    made = {(each["tenant_id"], each["name"]) for each in (set_secret(api, name).json() for name in "cadbe")}
    assert len(made) == 5
    found: list[tuple[str, str]] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        answer = api.client.get("/v1/secrets", params=query, headers=api.headers("operator"))
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= 2
        found += [(each["tenant_id"], each["name"]) for each in page["items"]]
        if page["next_cursor"] is None:
            break
        query = {"limit": 2, "cursor": page["next_cursor"]}
    assert found == sorted(made)
    foreign = {**query, "tenant_id": found[0][0]}
    refused = api.client.get("/v1/secrets", params=foreign, headers=api.headers("operator"))
    assert refused.status_code == 400, "a cursor of another query"
