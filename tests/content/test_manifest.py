"""A manifest is the same bytes for the same folder, and one from elsewhere writes nowhere but in its folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.content.faults import ManifestError
from muster.content.manifest import (
    CHUNK_BYTES,
    MAX_MANIFEST_BYTES,
    Entry,
    Kind,
    Manifest,
    decode,
    digest_of,
    encode,
    link_fault,
)

A = digest_of(b"a")
C = digest_of(b"c" * CHUNK_BYTES)
FILE = Entry("src/train.py", Kind.FILE, 1, (A,))
NAMES = st.text("aé 🙂-~*[", min_size=1, max_size=6)


def of(*entries: Entry) -> Manifest:
    return Manifest(1, entries)


def test_it_comes_back_from_its_bytes() -> None:
    manifest = of(
        Entry("data", Kind.FOLDER, 0, ()),
        Entry("now", Kind.LINK, 0, ("src/train.py",)),
        Entry("run", Kind.PROGRAM, CHUNK_BYTES + 1, (C, digest_of(b"b"))),
        FILE,
    )
    assert decode(encode(manifest)) == manifest
    assert list(manifest.chunks()) == [(C, CHUNK_BYTES), (digest_of(b"b"), 1), (A, 1)]


def test_its_digest_is_fixed_for_all_releases() -> None:
    content = encode(of(FILE))
    assert content == b'[1,[["src/train.py",0,1,["ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"]]]]'


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (Entry("../x", Kind.FILE, 0, ()), "no plain path"),
        (Entry("/etc/passwd", Kind.FILE, 0, ()), "no plain path"),
        (Entry("a//b", Kind.FILE, 0, ()), "no plain path"),
        (Entry("a\nb", Kind.FILE, 0, ()), "control character"),
        (Entry("n" * 256, Kind.FILE, 0, ()), "longer than 255 bytes"),
        (Entry("é" * 128, Kind.FILE, 0, ()), "longer than 255 bytes"),
        (Entry("/".join(["n" * 200] * 21), Kind.FILE, 0, ()), "longer than 4096 bytes"),
        (Entry("x", Kind.FILE, 1, ()), "0 chunks do not make 1 bytes"),
        (Entry("x", Kind.FILE, -1, ()), "0 chunks do not make -1 bytes"),
        (Entry("x", Kind.FILE, 1, ("../../etc",)), "no SHA-256"),
        (Entry("x", Kind.FILE, 1, (A.upper(),)), "no SHA-256"),
        (Entry("x", Kind.FOLDER, 0, (A,)), "a folder has no content"),
        (Entry("x", Kind.LINK, 0, ()), "one target"),
        (Entry("x", Kind.LINK, 0, ("/etc/passwd",)), "absolute path"),
        (Entry("a/x", Kind.LINK, 0, ("../../y",)), "out of the folder"),
        (Entry("a/b/x", Kind.LINK, 0, ("c/../../y",)), "`..` behind a name"),
    ],
)
def test_an_entry_that_no_work_folder_has_is_refused(entry: Entry, fault: str) -> None:
    with pytest.raises(ManifestError, match=fault):
        decode(encode(of(entry)))


@pytest.mark.parametrize(
    ("paths", "fault"),
    [(("b", "a"), "order of paths"), (("a", "a"), "stands twice"), (("a", "a/b"), "below a path that is no folder")],
)
def test_paths_that_exclude_each_other_are_refused(paths: tuple[str, ...], fault: str) -> None:
    with pytest.raises(ManifestError, match=fault):
        decode(encode(of(*(Entry(path, Kind.FILE, 0, ()) for path in paths))))


@pytest.mark.parametrize(
    "entries",
    [
        (Entry("a", Kind.FILE, CHUNK_BYTES, (A,)), Entry("b", Kind.FILE, 1, (A,))),
        (Entry("a", Kind.FILE, 1, (A,)), Entry("b", Kind.PROGRAM, CHUNK_BYTES, (A,))),
        (Entry("a", Kind.FILE, CHUNK_BYTES + 1, (A, A)),),
    ],
)
def test_a_chunk_has_one_size(entries: tuple[Entry, ...]) -> None:
    """Else many files would count with one byte each, and a host would write them with the larger one."""
    with pytest.raises(ManifestError, match="its chunk has two sizes"):
        decode(encode(of(*entries)))
    same = of(Entry("a", Kind.FILE, 2 * CHUNK_BYTES, (A, A)), Entry("b", Kind.LINK, 0, (A,)))
    assert decode(encode(same)) == same


@pytest.mark.parametrize("content", [b"", b"{}", b"[2,[]]", b"[1,[[1]]]", b'[1,[["x",9,0,[]]]]', b"\xff", b"[1,[]]x"])
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ManifestError, match="no manifest of version 1"):
        decode(content)


def test_one_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(ManifestError, match="are accepted"):
        decode(bytes(MAX_MANIFEST_BYTES + 1))


@given(folders=st.lists(NAMES, max_size=3), ups=st.integers(0, 5), names=st.lists(NAMES, min_size=1, max_size=3))
def test_a_link_is_accepted_exactly_where_its_target_is_inside(folders: list[str], ups: int, names: list[str]) -> None:
    fault = link_fault("/".join([*folders, "link"]), "/".join([".."] * ups + names))
    assert (fault is None) == (ups <= len(folders))
