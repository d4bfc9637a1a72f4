"""Heads and ranges of any bytes: each is read in one way, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.store.service.faults import S3Error
from muster.store.service.head import Head, head_of
from muster.store.service.ranges import range_of

LINES = st.lists(
    st.sampled_from(
        [
            b"host: a",
            b"Content-Length: 5",
            b"content-length:5",
            b"content-length: five",
            b"transfer-encoding: chunked",
            b" folded",
            b"connection: close",
            b"expect: 100-Continue",
            b": nameless",
            b"x-\xff: 1",
            b"x: \xff",
            b"",
        ]
    )
    | st.binary(max_size=12),
    max_size=4,
)
FIRST = st.sampled_from([b"GET /a HTTP/1.1", b"PUT /%61?b=1 HTTP/1.0", b"GET  /a HTTP/1.1", b"get /a HTTP/1.1"])


@given(first=FIRST | st.binary(max_size=20), lines=LINES)
def test_a_head_is_read_or_refused_and_nothing_else(first: bytes, lines: list[bytes]) -> None:
    try:
        head = head_of(b"\r\n".join([first, *lines]))
    except S3Error:
        return
    assert first in {b"GET /a HTTP/1.1", b"PUT /%61?b=1 HTTP/1.0"} or b"/" in first
    names = [line.partition(b":")[0].lower() for line in b"\r\n".join(lines).split(b"\r\n") if lines]
    assert len(set(names)) == len(names) == len(head.headers)
    assert "transfer-encoding" not in head.headers
    assert head.num_bytes is None or head.num_bytes >= 0


def test_a_head_is_decoded_once() -> None:
    head = head_of(
        b"PUT /b/%2561%2F?x=%20 HTTP/1.0\r\nContent-Length:  7 \r\nEXPECT: 100-continue\r\nconnection: Keep-Alive"
    )
    expected = {"content-length": "7", "expect": "100-continue", "connection": "Keep-Alive"}
    assert head == Head("PUT", "/b/%61/", "x=%20", expected, is_kept=True)
    assert (head.num_bytes, head.awaits_continue) == (7, True)


@pytest.mark.parametrize(
    ("head", "is_kept"),
    [(b"GET / HTTP/1.1", True), (b"GET / HTTP/1.0", False), (b"GET / HTTP/1.1\r\nconnection: Close", False)],
)
def test_a_connection_is_kept_as_the_client_prefers(head: bytes, *, is_kept: bool) -> None:
    assert head_of(head).is_kept == is_kept


@given(size=st.integers(0, 20), first=st.integers(0, 25), last=st.integers(0, 25) | st.none())
def test_a_range_is_the_slice_that_it_names(size: int, first: int, last: int | None) -> None:
    content = bytes(range(size))
    text = f"bytes={first}-{'' if last is None else last}"
    if first >= size and (last is None or last >= first):
        with pytest.raises(S3Error, match="behind the end") as caught:
            range_of(text, size)
        assert caught.value.headers == {"Content-Range": f"bytes */{size}"}
        return
    part = range_of(text, size)
    is_whole = last is not None and last < first
    end = size if last is None or is_whole else last + 1
    assert part.is_partial != is_whole
    assert content[part.start : part.start + part.num_bytes] == content[0 if is_whole else first : end]


@pytest.mark.parametrize("text", [None, "", "bytes", "bytes=", "bytes=-", "bytes=a-b", "rows=0-1", "bytes=0-1,3-4"])
def test_a_range_that_is_not_known_is_the_whole(text: str | None) -> None:
    assert range_of(text, 7) == (0, 7, False)


def test_a_suffix_is_of_the_end() -> None:
    assert range_of("bytes=-3", 7) == (4, 3, True)
    assert range_of("bytes=-9", 7) == (0, 7, True)
    with pytest.raises(S3Error):
        range_of("bytes=-0", 7)
