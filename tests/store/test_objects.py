"""The content store as the control plane uses it: the same cases on our own service and on moto's server."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from urllib.parse import urlsplit

import httpx
import pytest

from muster.domain.residency import StorePlace
from muster.settings import SettingsError, load_settings
from muster.store import objects
from muster.store.faults import ObjectGoneError, StoreRefusedError, fault_of
from muster.store.key_file import make_key_file
from muster.store.objects import ObjectStore
from tests.store.stores import TENANT, OurStore, Store, chunk_of, now

CONTENT = b"".join(number.to_bytes(4, "big") for number in range(75_000))


def test_a_chunk_is_put_and_read_back_by_signed_requests_alone(store: Store) -> None:
    key = chunk_of(CONTENT)
    assert store.put(key, CONTENT).status_code == 200
    answer = store.get(key)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert store.objects().head(key) == len(CONTENT)


def test_an_object_without_bytes_is_one(store: Store) -> None:
    key = chunk_of(b"")
    assert store.put(key, b"").status_code == 200
    assert store.get(key).content == b""
    assert store.objects().head(key) == 0


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-9", 0, 10),
        ("bytes=100-", 100, 300_000),
        ("bytes=-7", 299_993, 300_000),
        ("bytes=299999-400000", 299_999, 300_000),
    ],
)
def test_a_range_resumes_a_download(store: Store, wanted: str, start: int, end: int) -> None:
    key = chunk_of(CONTENT)
    store.put(key, CONTENT)
    answer = store.get(key, range=wanted)
    assert (answer.status_code, answer.content) == (206, CONTENT[start:end])
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/300000"


def test_a_range_behind_the_end_is_refused(store: Store) -> None:
    key = chunk_of(CONTENT)
    store.put(key, CONTENT)
    assert store.get(key, range="bytes=300000-").status_code == 416


def test_a_link_with_a_file_name_is_saved_and_never_shown_by_a_browser(store: Store) -> None:
    key = chunk_of(CONTENT)
    store.put(key, CONTENT)
    answer = store.send(store.objects().download(key, now(), 'model "é"/1.pt'))
    assert answer.content == CONTENT
    assert answer.headers["content-type"] == "application/octet-stream"
    expected = "attachment; filename=\"model ____1.pt\"; filename*=UTF-8''model%20%22%C3%A9%22%2F1.pt"
    assert answer.headers["content-disposition"] == expected


def test_what_is_not_there_is_named_as_gone(store: Store) -> None:
    key = chunk_of(b"never put")
    assert store.objects().head(key) is None
    answer = store.get(key)
    assert isinstance(fault_of(answer.status_code, answer.content), ObjectGoneError)


def test_a_list_names_each_object_of_a_prefix_over_several_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PAGE", 2)
    other = "ten_" + "1" * 26
    names = ["a", "a-b", "a/b", "a/c", "a0", "b/c/d"]
    keys = sorted(f"tenants/{other}/{name}" for name in names if store.folder.name.startswith("moto") or name != "a")
    for key in keys:
        assert store.put(key, key.encode()).status_code == 200
    found = list(store.objects().list(f"tenants/{other}/"))
    assert [each.key for each in found] == keys
    assert [each.num_bytes for each in found] == [len(key) for key in keys]
    assert all(abs(each.modified_at - now()) < timedelta(minutes=2) for each in found)
    assert [each.key for each in store.objects().list(f"tenants/{other}/a/")] == [
        f"tenants/{other}/a/{n}" for n in "bc"
    ]
    assert list(store.objects().list(f"tenants/{other}/none")) == []


def test_objects_are_deleted_and_a_second_time_is_no_fault(store: Store) -> None:
    contents = [os.urandom(10) for _ in range(5)]
    keys = [chunk_of(content) for content in contents]
    for key, content in zip(keys, contents, strict=True):
        store.put(key, content)
    store.objects().delete([*keys[:4], keys[0], chunk_of(b"never put, too")])
    assert [store.objects().head(key) for key in keys] == [None] * 4 + [10]


def test_a_bucket_that_is_not_there_is_refused_with_what_to_do(store: Store) -> None:
    with pytest.raises(StoreRefusedError, match="NoSuchBucket") as caught:
        store.objects(store_bucket="other").check()
    assert "bucket" in caught.value.suggestion
    store.objects().check()


def test_the_same_chunk_twice_at_once_is_one_object(our_own: OurStore) -> None:
    key = chunk_of(CONTENT)
    request = our_own.upload_request(key, CONTENT)
    begin = Barrier(2)

    def send(_number: int) -> int:
        begin.wait(timeout=60)
        return our_own.send(request, CONTENT).status_code

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(send, range(2))) == [200, 200]
    assert our_own.get(key).content == CONTENT


def test_settings_that_name_no_store_turn_it_off_and_a_part_of_them_is_refused(tmp_path: Path) -> None:
    assert ObjectStore.from_settings(load_settings({})) is None
    with pytest.raises(SettingsError, match="MUSTER_STORE_URL and MUSTER_STORE_KEY_FILE come together"):
        ObjectStore.from_settings(load_settings({"MUSTER_STORE_URL": "https://s3.example"}))
    given = {"MUSTER_STORE_URL": "https://s3.example", "MUSTER_STORE_KEY_FILE": str(tmp_path / "store.key")}
    with pytest.raises(SettingsError, match="cannot be read"):
        ObjectStore.from_settings(load_settings(given))
    with pytest.raises(SettingsError, match="MUSTER_STORE_URL: must be https"):
        load_settings({"MUSTER_STORE_URL": "http://s3.example"})


def test_its_name_and_site_come_from_the_settings(tmp_path: Path) -> None:
    make_key_file(tmp_path / "store.key")
    given = {"MUSTER_STORE_URL": "https://s3.example", "MUSTER_STORE_KEY_FILE": str(tmp_path / "store.key")}
    more = {"MUSTER_STORE_ID": "eu", "MUSTER_STORE_SITE": "ams"}
    for settings, place in ((given, StorePlace("main")), ({**given, **more}, StorePlace("eu", "ams"))):
        made = ObjectStore.from_settings(load_settings(settings))
        assert made is not None
        assert made.place == place


@pytest.mark.parametrize(
    ("url", "public", "expected"),
    [
        ("https://s3.example", None, "https://s3.example/data/"),
        ("https://s3.example:443/", None, "https://s3.example:443/data/"),
        ("https://{bucket}.s3.eu-central-1.amazonaws.com", None, "https://data.s3.eu-central-1.amazonaws.com/"),
        ("http://127.0.0.1:9000", "https://store.example/below", "https://store.example/below/data/"),
    ],
)
def test_addresses_are_of_the_public_name_and_style(
    tmp_path: Path, url: str, public: str | None, expected: str
) -> None:
    make_key_file(tmp_path / "store.key")
    given = {"URL": url, "BUCKET": "data", "KEY_FILE": str(tmp_path / "store.key"), "PUBLIC_URL": public or ""}
    made = ObjectStore.from_settings(load_settings({f"MUSTER_STORE_{name}": value for name, value in given.items()}))
    assert made is not None
    digest = hashlib.sha256(CONTENT).hexdigest()
    request = made.upload(chunk_of(CONTENT), len(CONTENT), digest, now())
    assert request.url.startswith(f"{expected}tenants/{TENANT}/chunks/{digest[:2]}/{digest}?X-Amz-Algorithm=")
    assert request.headers.keys() == {"content-length", "x-amz-checksum-sha256"}
    assert "X-Amz-SignedHeaders=content-length%3Bhost%3Bx-amz-checksum-sha256" in request.url
    assert httpx.URL(request.url).host == urlsplit(expected).hostname
