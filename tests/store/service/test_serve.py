"""The process ``muster store serve``: its budget, its start with wrong settings, and links that others sign."""

import hashlib
import os
import socket
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from muster.store.service import serve
from tests.store.stores import BUCKET, OurStore, chunk_of, our_store, ours

CONTENT = b"a chunk that botocore signs"


def test_it_has_a_low_priority_and_threads_of_its_connections_alone(our_own: OurStore) -> None:
    assert os.getpriority(os.PRIO_PROCESS, our_own.pid) == os.getpriority(os.PRIO_PROCESS, 0) + serve.NICE
    our_own.put(chunk_of(CONTENT), CONTENT)
    assert len(list(Path(f"/proc/{our_own.pid}/task").iterdir())) < 20


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    store = our_store(tmp_path)
    with socket.create_server(("127.0.0.1", int(store.url.rpartition(":")[2]))):
        assert f"MUSTER_STORE_HOST, MUSTER_STORE_PORT: {store.url[7:]} cannot be used (" in text_of_a_start(store)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"MUSTER_STORE_KEY_FILE": ""}, "MUSTER_STORE_KEY_FILE: is needed here and not set"),
        ({"MUSTER_STORE_KEY_FILE": "/nowhere"}, "/nowhere cannot be read: No such file"),
        (
            {"MUSTER_STORE_HOST": "192.0.2.1"},
            "store_host beyond loopback needs store_tls_certificate and store_tls_key",
        ),
        ({"MUSTER_STORE_TLS_KEY": "/nowhere"}, "store_tls_certificate and store_tls_key come together"),
        (
            {"MUSTER_STORE_TLS_KEY": "/nowhere", "MUSTER_STORE_TLS_CERTIFICATE": "/nowhere"},
            "MUSTER_STORE_TLS_CERTIFICATE, MUSTER_STORE_TLS_KEY: [Errno 2]",
        ),
        ({"MUSTER_STORE_DIR": "/proc/nowhere"}, "MUSTER_STORE_DIR: "),
        ({"MUSTER_STORE_BUCKET": "Not_A_Bucket"}, "MUSTER_STORE_BUCKET: "),
        ({"MUSTER_FAILPOINTS": "store.put.nowhere=kill"}, "which no module declares"),
    ],
)
def test_a_wrong_setting_is_named_at_the_start(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    assert words in text_of_a_start(our_store(tmp_path), **variables)


def text_of_a_start(store: OurStore, **variables: str) -> str:
    """Return what a start that fails writes."""
    ended = subprocess.run(
        [sys.executable, "-m", "muster", "store", "serve"],
        env={**store.environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode not in {0, None}
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_addresses_that_botocore_signs_are_accepted(our_own: OurStore) -> None:
    key, client = chunk_of(CONTENT), our_own.boto3()
    checksum = b64encode(hashlib.sha256(CONTENT).digest()).decode()
    put = {"Bucket": BUCKET, "Key": key, "ChecksumSHA256": checksum, "ContentLength": len(CONTENT)}
    url = client.generate_presigned_url("put_object", put, ExpiresIn=60)
    headers = {"x-amz-checksum-sha256": checksum, "content-length": str(len(CONTENT))}
    answer = our_own.client.put(url, content=CONTENT, headers=headers)
    assert answer.status_code == 200, answer.text
    url = client.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
    assert our_own.client.get(url, headers={"range": "bytes=2-6"}).content == b"chunk"
    url = client.generate_presigned_url("list_objects_v2", {"Bucket": BUCKET, "Prefix": key}, ExpiresIn=60)
    assert f"<Key>{key}</Key>" in our_own.client.get(url).text
    url = client.generate_presigned_url("head_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
    assert our_own.client.head(url).headers["content-length"] == str(len(CONTENT))
    url = client.generate_presigned_url("delete_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
    assert our_own.client.delete(url).status_code == 204
    assert our_own.get(key).status_code == 404


def test_a_download_that_breaks_off_is_resumed_after_a_restart_by_its_tag(tmp_path: Path) -> None:
    with ours(tmp_path / "store") as store:
        store.put(chunk_of(CONTENT), CONTENT)
        first = store.get(chunk_of(CONTENT), range="bytes=0-4")
        store.stop()
        store.start()
        tag = {"if-range": first.headers["etag"], "range": "bytes=5-"}
        rest = store.get(chunk_of(CONTENT), **tag)
        assert (rest.status_code, first.content + rest.content) == (206, CONTENT)
        store.put(chunk_of(CONTENT), CONTENT)
        whole = store.get(chunk_of(CONTENT), **tag)
        assert (whole.status_code, whole.content) == (200, CONTENT)
