"""Bodies that must never be taken, nor ever cause a fault in our own code: the catalogue, one row each."""

import json
from typing import Any

import pytest

from tests.api.conftest import GOOD_JOB, Api


def _text(**changes: Any) -> bytes:
    return json.dumps({**GOOD_JOB, **changes}).encode()


def _raw(fragment: str) -> bytes:
    return ('{"name":"train","program":{"script":"/srv/train.py"},' + fragment + "}").encode()


def _program(**members: Any) -> bytes:
    return _text(program={"script": "/srv/train.py", **members})


CASES: dict[str, tuple[bytes, int]] = {
    "NaN": (_raw('"wall_time_s":NaN'), 422),
    "Infinity": (_raw('"wall_time_s":Infinity'), 422),
    "-Infinity": (_raw('"wall_time_s":-Infinity'), 422),
    "1e999": (_raw('"wall_time_s":1e999'), 422),
    "NaN for an integer": (_raw('"shape":{"nodes":NaN}'), 422),
    "U+0000 in a value": (_raw('"tier":"a\\u0000b"'), 422),
    "U+0000 in a key": (_raw('"a\\u0000b":1'), 422),
    "lone surrogate": (_raw('"tier":"\\ud800"'), 422),
    "lone surrogate in a key": (_raw('"\\udfff":1'), 422),
    "2^63": (_raw('"shape":{"nodes":9223372036854775808}'), 422),
    "-2^63-1": (_raw('"shape":{"nodes":-9223372036854775809}'), 422),
    "10^5000": (_raw('"shape":{"nodes":1' + "0" * 5000 + "}"), 422),
    "nested 100,000 deep": (b'{"labels":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    "the same key twice": (b'{"name":"a","name":"b","program":{"script":"/a.py"}}', 400),
    "unknown field": (_text(is_admin=True), 422),
    "string for an integer": (_text(shape={"nodes": "1"}), 422),
    "boolean for an integer": (_text(shape={"nodes": True}), 422),
    "float for an integer": (_raw('"shape":{"nodes":1.5}'), 422),
    "underscored number": (_text(shape={"nodes": "1_000"}), 422),
    "UTF-16": (json.dumps(GOOD_JOB).encode("utf-16"), 400),
    "byte order mark": (b"\xef\xbb\xbf" + json.dumps(GOOD_JOB).encode(), 400),
    "invalid UTF-8": (b'{"name":"\xff"}', 400),
    "empty": (b"", 400),
    "not JSON": (b"{", 400),
    "an array": (b"[]", 400),
    "a bare word": (b"true", 400),
    "no GPUs": (_text(shape={"gpus_per_node": 0}), 422),
    "minus one GPU": (_text(shape={"gpus_per_node": -1}), 422),
    "10^9 nodes": (_text(shape={"nodes": 10**9}), 422),
    "larger than the fleet": (_text(shape={"nodes": 2, "gpus_per_node": 8}), 422),
    "unknown tier": (_text(tier="platinum"), 422),
    "name with a slash": (_text(name="a/b"), 422),
    "name with dots alone": (_text(name=".."), 422),
    "name with a line break": (_text(name="a\nb"), 422),
    "name with a right-to-left mark": (_text(name="a\u202eb"), 422),
    "long name": (_text(name="a" * 300), 422),
    "emoji name": (_text(name="\U0001f600"), 422),
    "name with a leading dash": (_text(name="-rf"), 422),
    "relative script": (_text(program={"script": "train.py"}), 422),
    "script with ..": (_text(program={"script": "/srv/../etc/passwd"}), 422),
    "script and argv": (_program(argv=["true"]), 422),
    "command without argv": (_text(program={"launcher": "command"}), 422),
    "LD_PRELOAD": (_program(env={"LD_PRELOAD": "/x.so"}), 422),
    "PATH": (_program(env={"PATH": "/x"}), 422),
    "environment key with =": (_program(env={"A=B": "1"}), 422),
    "10,000 environment keys": (_program(env={f"K{n}": "v" for n in range(10_000)}), 422),
    "5 KiB argument": (_program(args=["x" * 5000]), 422),
    "tenant_id of another": (_text(tenant_id="ten_00000000000000000000000000"), 422),
    "wall time 0": (_text(wall_time_s=0), 422),
    "negative restarts": (_text(restart={"max_restarts": -1}), 422),
    "2 MiB": (_program(args=["x" * (2 << 20)]), 413),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_body_is_refused_with_a_problem(api: Api, name: str) -> None:
    body, status = CASES[name]
    headers = {**api.headers(), "Content-Type": "application/json"}
    answer = api.client.post("/v1/jobs", content=body, headers=headers)
    problem = answer.json()
    assert answer.status_code == status, problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "code", "suggestion", "request_id"} <= problem.keys()
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert api.client.get("/v1/jobs", headers=api.headers()).json()["items"] == [], "nothing was half-written"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
    ],
)
def test_other_types_and_encodings_are_refused(api: Api, headers: dict[str, str], status: int) -> None:
    answer = api.client.post("/v1/jobs", content=_text(), headers={**api.headers(), **headers})
    assert answer.status_code == status


def test_the_field_at_fault_is_named_and_its_value_is_not_repeated(api: Api) -> None:
    answer = api.client.post("/v1/jobs", json={**GOOD_JOB, "name": "CANARY/VALUE"}, headers=api.headers())
    (fault,) = answer.json()["errors"]
    assert fault["pointer"] == "/name"
    assert "CANARY" not in answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("heartbeat", {"protocol": 1, "boot_id": "b", "seq": "x"}),
        ("heartbeat", {"protocol": 1, "boot_id": "", "seq": 1}),
        ("heartbeat", {"protocol": 1, "boot_id": "b", "seq": 2**63}),
        ("heartbeat", {"protocol": 1, "boot_id": "b", "seq": 1, "surprise": 1}),
        ("heartbeat", {"protocol": 1, "boot_id": "a\x00b", "seq": 1}),
        ("heartbeat", {"protocol": 1, "boot_id": "b", "seq": 1, "knows": ["a\x00b"]}),
        ("heartbeat", {"protocol": 1, "boot_id": "b", "seq": 1, "looks": [{"look_id": "look-1-\x00", "found": "fit"}]}),
        (
            "heartbeat",
            {"protocol": 1, "boot_id": "b", "seq": 1, "looks": [{"look_id": "a", "found": "unfit", "why": "\x00"}]},
        ),
        ("attempts/att_00000000000000000000000000/logs", {"protocol": 1, "fence": 1, "chunks": [{"stream": "../x"}]}),
    ],
)
def test_a_bad_message_of_a_host_is_refused_by_name(api: Api, path: str, body: dict[str, Any]) -> None:
    answer = api.client.post(f"/v1/hosts/self/{path}", json=body, headers=api.headers("node"))
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"]


def test_another_protocol_is_ordered_to_upgrade(api: Api) -> None:
    body = {"protocol": 99, "boot_id": "b", "seq": 1}
    answer = api.client.post("/v1/hosts/self/heartbeat", json=body, headers=api.headers("node"))
    assert (answer.status_code, answer.json()["code"]) == (426, "upgrade_required")
