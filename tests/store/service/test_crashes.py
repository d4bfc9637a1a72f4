"""A kill at any point of an upload leaves a whole object or none, and nothing of it after the next start."""

import os
import signal
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from muster.failpoints import declared
from muster.store.service import disk
from tests.scaled import examples
from tests.store.service.test_refusals import head_of_request
from tests.store.stores import OurStore, chunk_of, our_store, ours
from tests.waiting import wait_until

CONTENT = b"".join(number.to_bytes(4, "big") for number in range(500_000))
"""2 MB: eight pieces."""
KEY = chunk_of(CONTENT)
NUM_KILLS = examples(60, quick=4)
POINTS = {
    "store.put.in_body=kill@1": False,
    "store.put.in_body=kill@5": False,
    "store.put.before_rename=kill": False,
    "store.put.after_rename=kill": True,
}
"""Failpoint → whether the object is there afterwards."""


def test_every_failpoint_of_an_upload_is_tried() -> None:
    assert disk.AFTER_RENAME in declared()
    assert {point.partition("=")[0] for point in POINTS} == {name for name in declared() if name.startswith("store.")}


@pytest.mark.parametrize(
    ("point", "was_there"), [*((point, False) for point in POINTS), ("store.put.before_rename=kill", True)]
)
def test_a_kill_leaves_a_whole_object_or_none(tmp_path: Path, point: str, *, was_there: bool) -> None:
    store = our_store(tmp_path / "store")
    try:
        if was_there:
            store.start()
            assert store.put(KEY, CONTENT).status_code == 200
            store.stop()
        store.start(MUSTER_FAILPOINTS=point)
        with pytest.raises(httpx.TransportError):
            store.put(KEY, CONTENT)
        store.wait_killed()
        store.start()
        assert store.drafts() == []
        expected = was_there or POINTS[point]
        assert store.objects().head(KEY) == (len(CONTENT) if expected else None)
        assert [each.key for each in store.objects().list("")] == ([KEY] if expected else [])
        assert store.put(KEY, CONTENT).status_code == 200
        assert store.get(KEY).content == CONTENT
    finally:
        store.close()


@pytest.mark.timeout(1800)
def test_kills_at_arbitrary_times_leave_only_whole_objects(tmp_path: Path) -> None:
    """Four clients upload all the time, and the store is killed again and again."""
    contents = [bytes([at]) * 400_000 + os.urandom(8) for at in range(40)]
    store = our_store(tmp_path / "store")
    put: set[bytes] = set()
    num_answered = [0]
    ending = threading.Event()

    def upload(mine: list[bytes]) -> None:
        with httpx.Client(trust_env=False, timeout=30.0) as client:
            while not ending.is_set():
                for content in mine:
                    request = store.upload_request(chunk_of(content), content)
                    try:
                        answer = client.request("PUT", request.url, headers=dict(request.headers), content=content)
                    except httpx.TransportError:
                        continue
                    if answer.status_code == 200:
                        put.add(content)
                        num_answered[0] += 1

    uploaders = [threading.Thread(target=upload, args=(contents[at::4],)) for at in range(4)]
    try:
        store.start()
        for each in uploaders:
            each.start()
        for number in range(NUM_KILLS):
            wait_until(lambda before=num_answered[0], more=1 + number % 5: num_answered[0] >= before + more)  # type: ignore[misc]
            os.kill(store.pid, signal.SIGKILL)
            store.wait_killed()
            store.start()
        ending.set()
        for each in uploaders:
            each.join()
        found = {each.key: each.num_bytes for each in store.objects().list("")}
        assert {chunk_of(content) for content in put} <= found.keys()
        by_key = {chunk_of(content): content for content in contents}
        assert all(store.get(key).content == by_key[key] for key in found)
        assert store.drafts() == []
    finally:
        ending.set()
        store.close()


def test_an_upload_that_its_client_leaves_leaves_nothing(our_own: OurStore) -> None:
    content = CONTENT + b"left"
    request = our_own.upload_request(chunk_of(content), content)
    host, port = urlsplit(our_own.url).netloc.split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(head_of_request(our_own, request) + content[:300_000])
        wait_until(lambda: our_own.drafts() != [])
    wait_until(lambda: our_own.drafts() == [])
    assert our_own.objects().head(chunk_of(content)) is None


def test_a_second_process_does_not_work_in_the_same_folder(tmp_path: Path) -> None:
    with ours(tmp_path / "store") as store:
        other = our_store(tmp_path / "other", MUSTER_STORE_DIR=str(store.disk))
        other.start()
        assert not other.is_running()
        assert "another `muster store serve` works in" in other.log()
        assert store.put(KEY, CONTENT).status_code == 200


def test_an_upload_under_way_ends_before_the_process_does(tmp_path: Path) -> None:
    with ours(tmp_path / "store") as store:
        request = store.upload_request(KEY, CONTENT)
        host, port = urlsplit(store.url).netloc.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as line:
            line.sendall(head_of_request(store, request) + CONTENT[:300_000])
            wait_until(lambda: store.drafts() != [])
            os.kill(store.pid, signal.SIGTERM)
            line.sendall(CONTENT[300_000:])
            assert line.recv(65_536).startswith(b"HTTP/1.1 200 ")
        assert store.process is not None
        assert store.process.wait(timeout=60) == 0
        store.start()
        assert store.get(KEY).content == CONTENT
