"""Bundles by the API: its own limit of bodies, manifests of any kind, pages, and addresses that are of the tenant."""

from typing import Any

import pytest

from api.manifest_bodies import MOST_AT_ONCE, ManifestReaders
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.domain.errors import RateLimitedError
from tests.api.conftest import GOOD_JOB, Api


def manifest(*contents: bytes) -> bytes:
    entries = (
        Entry(f"file{number:06}", Kind.FILE, len(content), (digest_of(content),))
        for number, content in enumerate(contents)
    )
    return encode(Manifest(VERSION, tuple(entries)))


def begin(api: Api, content: bytes, expected: int = 200, query: str = "", actor: str = "tenant_member") -> Any:
    headers = {**api.headers(actor), "Content-Type": "application/json"}
    answer = api.client.post(f"/v1/bundles{query}", content=content, headers=headers)
    assert answer.status_code == expected, answer.text
    return answer.json()


def confirm(api: Api, digest: str, uploaded: list[str], expected: int = 200) -> Any:
    body = {"uploaded": uploaded}
    answer = api.client.post(f"/v1/bundles/{digest}/uploads", json=body, headers=api.headers())
    assert answer.status_code == expected, answer.text
    return answer.json()


def test_a_bundle_is_begun_uploaded_and_used(api: Api) -> None:
    content = manifest(b"one", b"two")
    begun = begin(api, content)
    assert (begun["state"], begun["num_missing"], begun["num_files"]) == ("uploading", 3, 2)
    assert begun["digest"] == digest_of(content)
    prefix = f"http://127.0.0.1:9/content/tenants/{api.fleet.tenant_id}/"
    for upload in begun["uploads"]:
        assert upload["url"].startswith(prefix)
        assert upload["method"] == "PUT"
        assert set(upload["headers"]) == {"content-length", "x-amz-checksum-sha256"}
    assert begun["uploads"][-1]["headers"]["content-length"] == str(len(content))
    done = confirm(api, begun["digest"], [upload["digest"] for upload in begun["uploads"]])
    assert (done["state"], done["uploads"]) == ("complete", [])
    job = {**GOOD_JOB, "program": {"script": "file000000", "bundle": begun["digest"]}}
    assert api.client.post("/v1/jobs", json=job, headers=api.headers()).status_code == 201
    assert api.client.post("/v1/jobs", json=job, headers=api.headers("other_tenant")).status_code == 422
    shown = api.client.get(f"/v1/bundles/{begun['digest']}", headers=api.headers()).json()
    assert shown["num_live_jobs"] == 1
    assert api.client.delete(f"/v1/bundles/{begun['digest']}", headers=api.headers()).status_code == 409


def test_uploads_are_offered_in_pages(api: Api) -> None:
    contents = [b"%d" % number for number in range(1_200)]
    begun = begin(api, manifest(*contents))
    assert (begun["num_missing"], len(begun["uploads"])) == (1_201, 500)
    left, found = 1_201, begun
    while found["uploads"]:
        offered = [upload["digest"] for upload in found["uploads"]]
        found = confirm(api, begun["digest"], offered)
        left -= len(offered)
        assert found["num_missing"] == left
    assert found["state"] == "complete"
    confirm(api, begun["digest"], ["0" * 64] * 501, expected=422)
    confirm(api, begun["digest"], ["no digest"], expected=422)


def test_a_dry_run_states_what_is_missing_and_stores_nothing(api: Api) -> None:
    tried = begin(api, manifest(b"one"), query="?dry_run=true")
    assert (tried["dry_run"], tried["num_missing"], tried["uploads"]) == (True, 2, [])
    assert api.client.get("/v1/bundles", headers=api.headers()).json()["items"] == []


def test_manifests_alone_may_be_large(api: Api) -> None:
    large = manifest(*(b"%d" % number for number in range(12_000)))
    assert len(large) > 1 << 20
    assert begin(api, large)["num_files"] == 12_000
    headers = {**api.headers(), "Content-Type": "application/json"}
    assert api.client.post("/v1/jobs", content=large, headers=headers).status_code == 413
    too_large = b" " * (33 << 20)
    assert begin(api, too_large, 413)["limit_bytes"] == 32 << 20


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{}", b"[]", b"[2, []]", b"[1, [[]]]", b'[1, [["../out", 0, 0, []]]]', b'[1, [["a\\n", 0, 0, []]]]'),
        *(b'[1, [["a", 0, 5, []]]]', b'[1, [["a", 2, 0, ["/etc/passwd"]]]]', b"[" * 10_000, b"\xff"),
        b'[1, [["b", 0, 0, []], ["a", 0, 0, []]]]',
    ],
)
def test_what_is_no_manifest_is_refused_by_its_path(api: Api, content: bytes) -> None:
    assert begin(api, content, 422)["errors"][0]["code"] == "no_manifest"


def test_few_manifests_of_a_tenant_are_read_at_once() -> None:
    readers = ManifestReaders()
    with readers.place("one"), readers.place("one"), readers.place("another"):
        assert MOST_AT_ONCE == 2
        with pytest.raises(RateLimitedError), readers.place("one"):
            pass
    with readers.place("one"):
        pass
    readers.close()


def test_bundles_are_listed_in_pages_and_by_tenant(api: Api) -> None:
    digests = [begin(api, manifest(b"%d" % number))["digest"] for number in range(3)]
    first = api.client.get("/v1/bundles?limit=2", headers=api.headers()).json()
    assert [one["digest"] for one in first["items"]] == digests[:0:-1]
    query = f"/v1/bundles?limit=2&cursor={first['next_cursor']}"
    second = api.client.get(query, headers=api.headers()).json()
    assert ([one["digest"] for one in second["items"]], second["next_cursor"]) == (digests[:1], None)
    assert api.client.get(query, headers=api.headers("operator")).status_code == 400
    assert api.client.get("/v1/bundles", headers=api.headers("other_tenant")).json()["items"] == []
    of_all = api.client.get(f"/v1/bundles?tenant_id={api.fleet.tenant_id}", headers=api.headers("operator")).json()
    assert len(of_all["items"]) == 3


def test_limits_and_use_are_reported(api: Api) -> None:
    begin(api, manifest(b"one"))
    found = api.client.get("/v1/content", headers=api.headers()).json()
    assert found["has_store"] is True
    assert found["used_bytes"] == 3 + len(manifest(b"one"))
    assert (found["bundle_bytes"], found["bundle_files"]) == (2 << 30, 200_000)
    assert api.client.get("/v1/content", headers=api.headers("operator")).status_code == 422
