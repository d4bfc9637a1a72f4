"""A file of a folder by one signed address: joined from its chunks, from our own store and from another one."""

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from muster.content.manifest import CHUNK_BYTES, VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.domain.ids import TenantId
from muster.ports import free_port
from muster.store.keys import chunk_key, manifest_key
from muster.store.objects import DOWNLOAD_S
from muster.store.service import gateway
from tests.store.stores import TENANT, OurStore, Store, now, our_store

OWNER = TenantId(TENANT)
LARGE = os.urandom(2 * CHUNK_BYTES + 1000)
SMALL = b"three"


def chunks_of(content: bytes) -> list[bytes]:
    return [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]


def manifest_of(**files: bytes) -> bytes:
    entries = [
        Entry(name.replace("__", "/"), Kind.FILE, len(text), tuple(map(digest_of, chunks_of(text))))
        for name, text in files.items()
    ]
    entries.append(Entry("a link", Kind.LINK, 0, ("small",)))
    return encode(Manifest(VERSION, tuple(sorted(entries, key=lambda entry: entry.path))))


class Served:
    """A store, and an address of files that may be another process's."""

    def __init__(self, store: Store, url: str) -> None:
        self.store, self.url = store, url

    def put(self, manifest: bytes, *contents: bytes) -> str:
        for one in (chunk for content in contents for chunk in chunks_of(content)):
            assert self.store.put(chunk_key(OWNER, digest_of(one)), one).status_code == 200
        assert self.store.put(manifest_key(OWNER, digest_of(manifest)), manifest).status_code == 200
        return digest_of(manifest)

    def link(self, manifest: str, path: str, *, seconds_ago: float = 0) -> str:
        objects = self.store.objects(store_gateway_url=self.url)
        return objects.file(OWNER, manifest, path, now() - timedelta(seconds=seconds_ago)).url

    def get(self, manifest: str, path: str, **headers: str) -> httpx.Response:
        return self.store.client.get(self.link(manifest, path), headers=headers)


@pytest.fixture(name="served", params=["our_own", "motos_own"])
def fixture_served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    store: Store = request.getfixturevalue(request.param)
    if isinstance(store, OurStore):
        yield Served(store, store.url)
        return
    process = our_store(tmp_path / "gateway", MUSTER_STORE_URL=store.url)
    process.key_file.write_bytes(store.key_file.read_bytes())
    process.words = ("store", "gateway")
    process.start()
    assert process.is_running(), process.log()
    yield Served(store, process.url)
    process.close()


def test_the_size_of_chunks_is_that_of_manifests() -> None:
    assert gateway.CHUNK_BYTES == CHUNK_BYTES


def test_a_file_is_read_whole_and_by_ranges(served: Served) -> None:
    manifest = served.put(manifest_of(models__large=LARGE, small=SMALL, empty=b""), LARGE, SMALL)
    whole = served.get(manifest, "models/large")
    assert (whole.status_code, whole.content) == (200, LARGE)
    assert whole.headers["content-disposition"].startswith('attachment; filename="large"')
    assert whole.headers["content-security-policy"].startswith("sandbox")
    for first, last in (
        (0, 9),
        (CHUNK_BYTES - 5, CHUNK_BYTES + 5),
        (len(LARGE) - 1, len(LARGE) - 1),
        (1, 2 * CHUNK_BYTES),
    ):
        part = served.get(manifest, "models/large", range=f"bytes={first}-{last}")
        assert (part.status_code, part.content) == (206, LARGE[first : last + 1])
        assert part.headers["content-range"] == f"bytes {first}-{last}/{len(LARGE)}"
    rest = served.get(manifest, "models/large", range="bytes=-7", **{"if-range": whole.headers["etag"]})
    assert rest.content == LARGE[-7:]
    changed = served.get(manifest, "models/large", range="bytes=-7", **{"if-range": '"another"'})
    assert (changed.status_code, changed.content) == (200, LARGE)
    assert served.get(manifest, "models/large", range=f"bytes={len(LARGE)}-").status_code == 416
    assert served.get(manifest, "small").content == SMALL
    assert served.get(manifest, "empty").content == b""


def test_what_is_no_file_of_the_folder_is_not_found(served: Served) -> None:
    manifest = served.put(manifest_of(small=SMALL), SMALL)
    for path in ("models", "smal", "small/", "../small", "", "a link"):
        assert served.get(manifest, path).status_code == 404
    assert served.get("0" * 64, "small").status_code == 404


def test_an_address_is_for_one_file_and_for_an_hour(served: Served) -> None:
    manifest = served.put(manifest_of(small=SMALL, other=b"other"), SMALL, b"other")
    link = served.link(manifest, "small")
    get = served.store.client.get
    assert get(link).content == SMALL
    assert get(link.replace("muster-file=small", "muster-file=other")).status_code == 403
    assert get(link.partition("?")[0]).status_code == 403
    assert get(served.link(manifest, "small", seconds_ago=DOWNLOAD_S + 1)).status_code == 403
    assert served.store.client.head(link).status_code == 403, "the method is signed"


def test_a_missing_chunk_is_reported_before_the_answer_begins_and_cuts_it_later(served: Served) -> None:
    first = os.urandom(CHUNK_BYTES)
    manifest = served.put(manifest_of(both=first + b"never uploaded", none=b"nor this"), first)
    assert served.get(manifest, "none").status_code == 404
    with pytest.raises(httpx.RemoteProtocolError):
        served.get(manifest, "both")


def test_a_manifest_that_is_none_is_a_fault_of_the_store(served: Served) -> None:
    broken = json.dumps({"not": "a manifest"}).encode()
    manifest = served.put(broken)
    assert served.get(manifest, "small").status_code == 403


def test_other_bytes_in_a_foreign_store_are_not_passed_on(tmp_path: Path, motos_own: Store) -> None:
    content = os.urandom(1000)
    served = Served(motos_own, f"http://127.0.0.1:{free_port()}")
    manifest = served.put(manifest_of(file=content), content)
    motos_own.boto3().put_object(Bucket="muster", Key=chunk_key(OWNER, digest_of(content)), Body=b"x" * 1000)
    process = our_store(tmp_path / "gateway", MUSTER_STORE_URL=motos_own.url)
    process.key_file.write_bytes(motos_own.key_file.read_bytes())
    process.words = ("store", "gateway")
    process.start()
    served.url = process.url
    answer = served.get(manifest, "file")
    assert answer.status_code == 403
    assert b"other bytes" in answer.content
    assert process.stop() == 0
