"""What our own service refuses, over a socket: nothing of a refused request is stored, and the text says why."""

import hashlib
import socket
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from muster.store.faults import StoreError, StoreRefusedError, StoreWrongError, fault_of
from muster.store.key_file import read_keys
from muster.store.objects import SignedRequest
from muster.store.signing import Request, presign
from tests.store.stores import BUCKET, OurStore, Store, chunk_of, now

CONTENT = b"x" * 100_000


def signed(store: OurStore, method: str, path: str, headers: dict[str, str] | None = None) -> SignedRequest:
    """A request for any path, signed by the store's own key."""
    headers = headers or {}
    request = Request(method, path, {}, {"host": urlsplit(store.url).netloc, **headers})
    target = presign(request, read_keys(store.key_file)[0], "us-east-1", now=now(), expires_s=60)
    return SignedRequest(method, store.url + target, headers)


def talk(store: OurStore, *parts: bytes) -> bytes:
    """Send raw bytes on a connection of its own, and return all that comes back."""
    host, port = urlsplit(store.url).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        for part in parts:
            line.sendall(part)
        line.shutdown(socket.SHUT_WR)
        answer = b""
        while more := line.recv(65_536):
            answer += more
    return answer


def head_of_request(store: Store, request: SignedRequest, *more: str) -> bytes:
    target, host = request.url.removeprefix(store.url), urlsplit(store.url).netloc
    headers = [f"host: {host}", *(f"{name}: {value}" for name, value in request.headers.items()), *more]
    return "\r\n".join((f"{request.method} {target} HTTP/1.1", *headers, "", "")).encode()


def refused(store: OurStore, request: SignedRequest, content: bytes | None, **headers: str) -> StoreError:
    answer = store.send(request, content, **headers)
    assert answer.status_code >= 400
    assert answer.headers["content-type"] == "application/xml"
    return fault_of(answer.status_code, answer.content)


def test_without_a_signature_nothing_is_read_or_written(our_own: OurStore) -> None:
    key = chunk_of(CONTENT)
    our_own.put(key, CONTENT)
    for method in ("GET", "PUT", "HEAD", "DELETE"):
        answer = our_own.client.request(
            method, f"{our_own.url}/{BUCKET}/{key}", content=b"y" if method == "PUT" else None
        )
        assert answer.status_code == 403
    assert our_own.get(key).content == CONTENT


def test_an_expired_address_is_refused(our_own: OurStore) -> None:
    request = our_own.upload_request(chunk_of(b"late"), b"late", now=now() - timedelta(hours=1))
    fault = refused(our_own, request, b"late")
    assert isinstance(fault, StoreRefusedError)
    assert "has expired: get another one" in str(fault)
    assert our_own.get(chunk_of(b"late")).status_code == 404


def test_an_address_for_one_chunk_puts_no_other(our_own: OurStore) -> None:
    request = our_own.upload_request(chunk_of(b"one"), b"one")
    longer = SignedRequest("PUT", request.url, {**request.headers, "content-length": "4"})
    assert "SignatureDoesNotMatch" in str(refused(our_own, longer, b"more"))
    other = request.url.replace(chunk_of(b"one")[-64:], chunk_of(b"two")[-64:])
    assert "SignatureDoesNotMatch" in str(refused(our_own, SignedRequest("PUT", other, request.headers), b"one"))
    fault = refused(our_own, request, b"two")
    assert isinstance(fault, StoreWrongError)
    assert "BadDigest" in str(fault)
    assert our_own.get(chunk_of(b"one")).status_code == our_own.get(chunk_of(b"two")).status_code == 404
    assert our_own.drafts() == []


def test_an_address_to_read_does_not_write_or_delete(our_own: OurStore) -> None:
    key = chunk_of(CONTENT)
    our_own.put(key, CONTENT)
    download = our_own.objects().download(key, now())
    for method, content in (("PUT", b"y"), ("DELETE", None)):
        assert our_own.send(SignedRequest(method, download.url, {}), content).status_code == 403
    assert our_own.get(key).content == CONTENT


def test_another_store_of_the_same_key_does_not_accept_it(our_own: OurStore) -> None:
    """The signature covers the name of the host."""
    request = our_own.objects(store_url="http://127.0.0.1:1").download(chunk_of(CONTENT), now())
    moved = SignedRequest("GET", request.url.replace("http://127.0.0.1:1", our_own.url), {})
    assert "SignatureDoesNotMatch" in str(refused(our_own, moved, None))


@pytest.mark.parametrize(
    "key",
    [
        "../escaped",
        "tenants/../../escaped",
        "tenants/%2e%2e/escaped",
        "/escaped",
        "tenants//escaped",
        "tenants/.hidden",
        "tenants/a\nb",
        "tenants/a\x00b",
        "tenants/a\\b",
        "tenants/é",
        "tenants/" + "n" * 256,
        "t/" * 600 + "t",
        "tenants/",
    ],
)
def test_a_key_that_is_no_plain_path_is_refused_though_it_is_signed(our_own: OurStore, key: str) -> None:
    before = sorted(our_own.folder.parent.rglob("escaped*"))
    headers = {"content-length": "1", "x-amz-checksum-sha256": "ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs="}
    answer = talk(our_own, head_of_request(our_own, signed(our_own, "PUT", f"/{BUCKET}/{key}", headers)), b"a")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"<Code>InvalidArgument</Code>" in answer or b"<Code>KeyTooLongError</Code>" in answer
    assert sorted(our_own.folder.parent.rglob("escaped*")) == before


def test_a_key_above_or_below_another_object_is_refused(our_own: OurStore) -> None:
    assert our_own.put("tenants/file", b"1").status_code == 200
    assert "above or below" in str(refused(our_own, our_own.upload_request("tenants/file/below", b"2"), b"2"))
    assert our_own.put("tenants/folder/file", b"3").status_code == 200
    assert "above or below" in str(refused(our_own, our_own.upload_request("tenants/folder", b"4"), b"4"))
    assert our_own.get("tenants/folder").status_code == our_own.get("tenants/file/below").status_code == 404
    our_own.objects().delete(["tenants/folder", "tenants/file/below"])
    assert our_own.get("tenants/folder/file").content == b"3"


@pytest.mark.parametrize("prefix", ["../", "/etc/", "tenants/../", "a//"])
def test_a_list_leaves_the_store_by_no_prefix(our_own: OurStore, prefix: str) -> None:
    with pytest.raises(StoreRefusedError, match="no key has this prefix"):
        list(our_own.objects().list(prefix))


def test_a_link_in_the_stores_folder_is_no_object(our_own: OurStore) -> None:
    (our_own.disk / "objects/tenants").mkdir(parents=True, exist_ok=True)
    link = our_own.disk / "objects/tenants/link"
    link.symlink_to("/etc/hostname")
    assert our_own.get("tenants/link").status_code == 404
    link.unlink()


def test_an_object_that_is_too_large_is_refused_before_its_body_is_sent(our_own: OurStore) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    request = our_own.objects().upload("tenants/large", 1 << 40, digest, now())
    answer = talk(our_own, head_of_request(our_own, request))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"<Code>EntityTooLarge</Code>" in answer
    assert b"an object may have 1,073,741,824 bytes" in answer


def test_a_client_that_waits_for_leave_gets_it_only_for_what_may_be_stored(our_own: OurStore) -> None:
    key = chunk_of(b"with leave")
    request = our_own.upload_request(key, b"with leave")
    answer = talk(our_own, head_of_request(our_own, request, "expect: 100-continue"), b"with leave")
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert our_own.get(key).content == b"with leave"
    download = SignedRequest("PUT", our_own.objects().download(key, now()).url, request.headers)
    answer = talk(our_own, head_of_request(our_own, download, "expect: 100-continue"), b"with leave")
    assert answer.startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"GARBAGE", b"InvalidRequest"),
        (b"GET http://other.example/ HTTP/1.1", b"InvalidRequest"),
        (b"GET / HTTP/2.0", b"InvalidRequest"),
        (b"GET /a b HTTP/1.1", b"InvalidRequest"),
        (b"GET / HTTP/1.1\r\nhost : a", b"InvalidRequest"),
        (b"GET / HTTP/1.1\r\nhost: a\r\n folded", b"InvalidRequest"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b", b"InvalidRequest"),
        (b"GET / HTTP/1.1\r\na: \x00", b"InvalidRequest"),
        (b"GET / HTTP/1.1\r\ncontent-length: -1", b"InvalidRequest"),
        (b"GET / HTTP/1.1\r\ncontent-length: 1, 1", b"InvalidRequest"),
        (b"PUT / HTTP/1.1\r\ntransfer-encoding: chunked", b"MissingContentLength"),
        (b"PUT / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked", b"MissingContentLength"),
        (b"GET /%ff HTTP/1.1", b"InvalidArgument"),
        (b"GET / HTTP/1.1" + b"".join(b"\r\na%d: b" % at for at in range(101)), b"RequestHeaderSectionTooLarge"),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 40_000, b"RequestHeaderSectionTooLarge"),
        (b"POST /muster?delete HTTP/1.1", b"MethodNotAllowed"),
        (b"GET /muster/a?X-Amz-Date=1&X-Amz-Date=2 HTTP/1.1", b"InvalidArgument"),
    ],
)
def test_a_request_of_two_meanings_or_none_is_refused(our_own: OurStore, head: bytes, code: bytes) -> None:
    answer = talk(our_own, head + b"\r\n\r\n")
    assert b"<Code>" + code + b"</Code>" in answer
    assert answer.count(b"\r\nDate: ") == 1


def test_a_body_of_a_request_that_takes_none_is_not_read_as_the_next_request(our_own: OurStore) -> None:
    key = chunk_of(CONTENT)
    our_own.put(key, CONTENT)
    target = our_own.objects().download(key, now()).url.removeprefix(our_own.url)
    host = urlsplit(our_own.url).netloc
    smuggled = b"GET /healthz HTTP/1.1\r\n\r\n"
    head = f"GET {target} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(smuggled)}\r\n\r\n".encode()
    assert talk(our_own, head, smuggled).count(b"HTTP/1.1 200") == 1


def test_two_requests_that_are_sent_at_once_are_answered_in_their_order(our_own: OurStore) -> None:
    answer = talk(our_own, b"GET /healthz HTTP/1.1\r\n\r\nGET /muster/x HTTP/1.1\r\n\r\n")
    assert answer.index(b"200 OK") < answer.index(b"403 Forbidden")


def test_a_signed_header_of_an_answer_ends_no_header(our_own: OurStore) -> None:
    key = chunk_of(CONTENT)
    our_own.put(key, CONTENT)
    request = Request("GET", f"/{BUCKET}/{key}", {"response-content-type": "é"}, {"host": urlsplit(our_own.url).netloc})
    target = presign(request, read_keys(our_own.key_file)[0], "us-east-1", now=now(), expires_s=60)
    assert "printable ASCII" in str(refused(our_own, SignedRequest("GET", our_own.url + target, {}), None))


def test_an_answer_cannot_be_shown_as_a_page(our_own: OurStore) -> None:
    key = chunk_of(CONTENT)
    our_own.put(key, CONTENT)
    headers = our_own.get(key).headers
    assert headers["content-disposition"] == "attachment"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("sandbox")
