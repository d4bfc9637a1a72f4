"""Signatures of addresses: botocore makes the same ones, and what it signs is verified here."""

import time
import timeit
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import botocore.auth
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from muster.store.signing import AccessKey, Request, SignatureError, presign, query_of, verify

KEY = AccessKey("tester", "a/secret+of=40 characters")
KEYS = {KEY.name: KEY}
REGION = "eu-central-1"
NOW = datetime(2026, 11, 28, 23, 59, 58, tzinfo=UTC)
HOST = "store.example:9000"
CHECKSUM = "ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs="
UPLOAD = {"host": HOST, "content-length": "1371", "x-amz-checksum-sha256": CHECKSUM}
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)


def signed(request: Request, *, expires_s: int = 900, now: datetime = NOW, key: AccessKey = KEY) -> str:
    return presign(request, key, REGION, now=now, expires_s=expires_s)


def received(target: str, request: Request) -> Request:
    """The request as the service gets it."""
    return Request(request.method, request.path, query_of(target.partition("?")[2]), request.headers)


def botocores(request: Request, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The query that botocore signs for the same request."""
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: NOW.replace(tzinfo=None))
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in request.query.items())
    url = f"http://{HOST}{quote(request.path, safe='/~')}" + (f"?{query}" if query else "")
    headers = {name: value for name, value in request.headers.items() if name != "host"}
    asked = AWSRequest(request.method, url, headers)
    S3SigV4QueryAuth(Credentials(KEY.name, KEY.secret), "s3", REGION, expires=900).add_auth(asked)
    return query_of(urlsplit(asked.url).query)


@pytest.mark.parametrize(
    "request_",
    [
        Request("GET", "/muster/tenants/ten_1/chunks/9f/9f86", {}, {"host": HOST}),
        Request("PUT", "/muster/tenants/ten_1/chunks/9f/9f86", {}, UPLOAD),
        Request(
            "GET",
            "/muster/a b/é+~&=%.txt",
            {"response-content-disposition": 'attachment; filename="a b"'},
            {"host": HOST},
        ),
        Request(
            "GET",
            "/muster/",
            {"list-type": "2", "list": "1", "prefix": "tenants/é +%", "max-keys": "1000"},
            {"host": HOST},
        ),
    ],
)
def test_a_signature_is_the_one_that_botocore_makes(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    assert received(signed(request_), request_).query == botocores(request_, monkeypatch)


@given(path=TEXTS, query=st.dictionaries(TEXTS, TEXTS, max_size=3), value=TEXTS)
def test_every_request_that_is_signed_verifies_and_is_refused_with_one_part_changed(
    path: str, query: dict[str, str], value: str
) -> None:
    request = Request("PUT", f"/b/{path}", query, {"host": HOST, "x-amz-meta-of": value})
    target = signed(request)
    verify(received(target, request), KEYS.get, REGION, now=NOW)
    for changed in (
        Request("GET", request.path, query, request.headers),
        Request("PUT", f"{request.path}x", query, request.headers),
        Request("PUT", request.path, query, {**request.headers, "x-amz-meta-of": f"{value}x"}),
        Request("PUT", request.path, query, {**request.headers, "host": "other.example"}),
    ):
        with pytest.raises(SignatureError, match="does not match"):
            verify(received(target, changed), KEYS.get, REGION, now=NOW)
    with pytest.raises(SignatureError, match="does not match"):
        verify(received(target + "&more=1", request), KEYS.get, REGION, now=NOW)


def fault(target: str, request: Request, *, now: datetime = NOW, **options: Any) -> str:
    with pytest.raises(SignatureError) as caught:
        verify(
            received(target, request), options.pop("keys", KEYS).get, options.pop("region", REGION), now=now, **options
        )
    return f"{caught.value.code}: {caught.value.detail}"


def test_each_reason_of_a_refusal_is_named() -> None:
    request = Request("GET", "/muster/a", {}, {"host": HOST})
    target = signed(request)
    assert "AccessDenied: the address is not signed: X-Amz-Algorithm is missing" in fault("/muster/a", request)
    assert "SignatureDoesNotMatch" in fault(target[:-1] + ("0" if target[-1] != "0" else "1"), request)
    assert "SignatureDoesNotMatch" in fault(target + "%C3%A9", request)
    assert "InvalidArgument: X-Amz-Algorithm" in fault(target.replace("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"), request)
    assert "InvalidAccessKeyId" in fault(target, request, keys={})
    assert "AccessDenied: the signed address has expired" in fault(target, request, now=NOW + timedelta(seconds=900))
    assert "RequestTimeTooSkewed" in fault(target, request, now=NOW - timedelta(seconds=301))
    assert "and of us-east-1" in fault(target, request, region="us-east-1")
    assert "of the day of X-Amz-Date" in fault(target.replace("X-Amz-Date=20261128", "X-Amz-Date=20261129"), request)
    assert "X-Amz-Expires must be 1 to" in fault(signed(request, expires_s=604_801), request)
    assert "X-Amz-Expires must be 1 to" in fault(signed(request, expires_s=0), request)
    assert "cannot be read" in fault(target.replace("X-Amz-Expires=900", "X-Amz-Expires=9h"), request)
    assert "must cover the header content-length" in fault(target, request, required=("host", "content-length"))


@pytest.mark.parametrize("query", ["a=1&a=2", "a=%0A", "a%00=1", "a=%FF"])
def test_a_query_of_two_meanings_is_refused(query: str) -> None:
    with pytest.raises(SignatureError, match="stands twice, or has a control character"):
        query_of(query)


def test_a_request_before_midnight_counts_after_it() -> None:
    request = Request("GET", "/muster/a", {}, {"host": HOST})
    verify(received(signed(request), request), KEYS.get, REGION, now=NOW + timedelta(seconds=899))
    verify(received(signed(request), request), KEYS.get, REGION, now=NOW - timedelta(seconds=299))


def test_the_secret_is_in_no_text() -> None:
    assert KEY.secret not in f"{KEY!r} {signed(Request('GET', '/a', {}, {'host': HOST}))}"


def test_a_signature_costs_less_than_botocores() -> None:
    """A folder may have tens of thousands of chunks. CPU time of both sides on one machine, each at its best."""
    path = f"/muster/tenants/ten_{'0' * 26}/chunks/9f/{'9f' * 32}"
    auth = S3SigV4QueryAuth(Credentials(KEY.name, KEY.secret), "s3", REGION)

    def cost(sign: Callable[[], object]) -> float:
        return min(timeit.repeat(sign, timer=time.thread_time, number=20, repeat=40))

    ours = cost(lambda: signed(Request("PUT", path, {}, UPLOAD)))
    theirs = cost(lambda: auth.add_auth(AWSRequest("PUT", f"http://{HOST}{path}", UPLOAD)))
    assert ours < theirs
