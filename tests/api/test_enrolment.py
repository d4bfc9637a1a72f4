"""Enrolment over HTTP, from an operator's join token to a heartbeat with the hour's token."""

import base64
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from muster.wire.enrolment import challenge_bytes
from tests.api.conftest import Api

GPU = {
    "uuid": "GPU-0a",
    "slot_index": 0,
    "model": "H100",
    "memory_bytes": 80 << 30,
    "compute_capability": "9.0",
    "driver_version": "570",
}


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _join_token(api: Api, **wanted: Any) -> dict[str, Any]:
    answer = api.client.post("/v1/join-tokens", json={"host_name": "gpu-9", **wanted}, headers=api.headers("operator"))
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


def _enrol(api: Api, key: Ed25519PrivateKey, token: str, **changes: Any) -> Any:
    body = {
        "protocol": 1,
        "token": token,
        "host_name": "gpu-9",
        "public_key": _text(key.public_key().public_bytes_raw()),
        "gpus": [GPU],
        **changes,
    }
    return api.client.post("/v1/enrol", json=body)


def _ask(api: Api, key: Ed25519PrivateKey, node_id: str, at_ms: int | None = None) -> Any:
    at_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
    said = {"boot_id": "boot-1", "instance": "i" * 16, "nonce": "n" * 16, "at_ms": at_ms}
    signature = key.sign(challenge_bytes(node_id, boot_id="boot-1", instance="i" * 16, nonce="n" * 16, at_ms=at_ms))
    body = {"protocol": 1, **said, "signature": _text(signature)}
    return api.client.post(f"/v1/nodes/{node_id}/token", json=body)


def test_a_host_enrols_and_beats_with_the_hours_token(api: Api) -> None:
    key = Ed25519PrivateKey.generate()
    made = _join_token(api, rack="r1", address="10.1.1.1")
    node_id = _enrol(api, key, made["token"]).json()["node_id"]
    answer = _ask(api, key, node_id)
    assert answer.status_code == 200, answer.text
    headers = {"Authorization": f"Bearer {answer.json()['token']}"}
    assert api.client.get("/v1/whoami", headers=headers).json()["node_id"] == node_id
    beat = {"protocol": 1, "boot_id": "boot-1", "seq": 1}
    assert api.client.post("/v1/hosts/self/heartbeat", json=beat, headers=headers).status_code == 200
    nodes = api.client.get("/v1/nodes", headers=api.headers("operator")).json()["items"]
    assert {"gpu-9": "10.1.1.1"}.items() <= {node["name"]: node["address"] for node in nodes}.items()


def test_only_operators_make_join_tokens(api: Api) -> None:
    for who in ("tenant_admin", "auditor", "node"):
        answer = api.client.post("/v1/join-tokens", json={"host_name": "gpu-9"}, headers=api.headers(who))
        assert answer.status_code == 403


def test_a_dry_run_of_a_join_token_makes_none(api: Api) -> None:
    answer = api.client.post(
        "/v1/join-tokens?dry_run=true", json={"host_name": "gpu-9"}, headers=api.headers("operator")
    )
    assert _enrol(api, Ed25519PrivateKey.generate(), answer.json()["token"]).status_code == 401


def test_refusals_are_problems_that_state_what_to_do(api: Api) -> None:
    key = Ed25519PrivateKey.generate()
    token = _join_token(api)["token"]
    assert _enrol(api, key, token, host_name="other").status_code == 403
    assert _enrol(api, key, token, gpus=[{**GPU, "uuid": "GPU-alpha-0"}]).json()["detail"].endswith("node alpha")
    assert _enrol(api, key, token, protocol=2).status_code == 426
    node_id = _enrol(api, key, token).json()["node_id"]
    assert _enrol(api, Ed25519PrivateKey.generate(), token).status_code == 409
    stale = _ask(api, key, node_id, at_ms=1)
    assert (stale.status_code, stale.json()["reason"]) == (409, "stale_challenge")
    assert abs(stale.json()["server_time_ms"] - time.time_ns() // 1_000_000) < 60_000
    assert _ask(api, Ed25519PrivateKey.generate(), node_id).status_code == 401
    assert _ask(api, key, "node_00000000000000000000000000").status_code == 401
    assert _ask(api, key, "nonsense").status_code == 404


@pytest.mark.parametrize(
    "changes",
    [
        {"public_key": _text(b"short")},
        {"host_name": "UPPER"},
        {"host_name": "a\n"},
        {"host_name": "-a"},
        {"gpus": [{**GPU, "model": "a\x00b"}]},
        {"gpus": [{**GPU, "uuid": ""}]},
        {"gpus": [{**GPU, "memory_bytes": 0}]},
        {"gpus": [GPU] * 73},
        {"surprise": 1},
    ],
)
def test_a_bad_message_is_refused_by_name(api: Api, changes: dict[str, Any]) -> None:
    answer = _enrol(api, Ed25519PrivateKey.generate(), _join_token(api)["token"], **changes)
    assert answer.status_code == 422, answer.text


def test_a_gpu_named_twice_is_refused(api: Api) -> None:
    answer = _enrol(api, Ed25519PrivateKey.generate(), _join_token(api)["token"], gpus=[GPU, GPU])
    assert answer.status_code == 409
