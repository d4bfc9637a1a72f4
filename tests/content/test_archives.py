"""Archives have all of a folder, the same on each machine, and nothing is unpacked that no folder of files has."""

import io
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.content.archives import is_unpacked, pack, unpack
from muster.content.faults import ArchiveError, FolderError
from muster.content.manifest import CHUNK_BYTES, Kind
from muster.content.read import read_folder

LARGE = CHUNK_BYTES + 7
END = bytes(2 * tarfile.BLOCKSIZE)


def first_part(path: str) -> str | None:
    return path.partition("/")[0] if "/" in path else None


def write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def packed(folder: Path, name: str = "packed") -> list[Path]:
    target = folder.with_name(name)
    pack(folder, target, first_part)
    return sorted(target.rglob("*.tar"))


def content_of(folder: Path) -> dict[str, tuple[bytes, bool]]:
    found = read_folder(folder, takes_all=True).manifest.entries
    return {
        one.path: ((folder / one.path).read_bytes() if one.kind <= Kind.PROGRAM else b"", one.kind is Kind.PROGRAM)
        for one in found
    }


def chunks_of(folder: Path) -> set[str]:
    return {digest for digest, _ in read_folder(folder, takes_all=True).manifest.chunks()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    long = "/".join(["a-long-name" * 10] * 4)
    folder = write(
        tmp_path / "own", **{"a/one.py": b"1", "big/b.so": os.urandom(LARGE), f"{long}/é": b"2", "zero": b""}
    )
    (folder / "tool").write_bytes(b"#!/bin/sh\n")
    (folder / "tool").chmod(0o750)
    (folder / "nothing" / "in it").mkdir(parents=True)
    return folder


def test_what_is_unpacked_is_what_was_packed(folder: Path, tmp_path: Path) -> None:
    archives = packed(folder)
    assert [path.relative_to(tmp_path / "packed").as_posix() for path in archives] == [
        "groups/big/others.tar",
        "others.tar",
    ]
    unpack(archives, tmp_path / "out")
    assert content_of(tmp_path / "out") == content_of(folder)
    assert is_unpacked(archives, tmp_path / "out")
    assert (tmp_path / "out" / "tool").stat().st_mode & 0o777 == 0o555
    assert (tmp_path / "out" / "zero").stat().st_mode & 0o777 == 0o444


def test_archives_do_not_depend_on_times_modes_and_order(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for path in sorted(folder.rglob("*"), reverse=True):
        copy = other / path.relative_to(folder)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        else:
            write(other, **{str(path.relative_to(folder)): path.read_bytes()})
            copy.chmod(0o700 if path.name == "tool" else 0o600)
            os.utime(copy, (1, 1))
    packed(folder, "one")
    packed(other, "two")
    assert content_of(tmp_path / "one") == content_of(tmp_path / "two")


def test_folders_share_the_chunks_of_a_large_group(folder: Path, tmp_path: Path) -> None:
    packed(folder, "one")
    write(folder, **{"a/more.py": b"more"})
    packed(folder, "two")
    assert len(chunks_of(tmp_path / "one") & chunks_of(tmp_path / "two")) == 2, "the two of big/b.so"
    assert len(chunks_of(tmp_path / "one") ^ chunks_of(tmp_path / "two")) == 2, "one of the others, before and after"


def put_link(folder: Path) -> None:
    (folder / "a" / "link").symlink_to("one.py")


def put_link_out(folder: Path) -> None:
    (folder / "a" / "link").symlink_to("/etc")


def put_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "a" / "socket"))


def put_newline(folder: Path) -> None:
    (folder / "a" / "x\ny").write_bytes(b"")


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (put_link, "a/link: it is a link"),
        (put_link_out, "an absolute path"),
        (put_socket, "a socket, a pipe or a device"),
        (put_newline, "a control character"),
    ],
)
def test_what_is_no_plain_file_is_not_packed(
    folder: Path, tmp_path: Path, put: Callable[[Path], None], words: str
) -> None:
    os.chdir(tmp_path)
    put(folder)
    with pytest.raises(FolderError, match=words):
        packed(folder)


def member(name: str, content: bytes = b"", **about: object) -> bytes:
    """Return a member as it stands in an archive. ``about``: attributes of its header."""
    header = tarfile.TarInfo(name)
    header.mode, header.size = 0o444, len(content)
    for key, value in about.items():
        setattr(header, key, value)
    return header.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def of_size(num_bytes: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a header with a size that no writer writes, as a damaged bit makes one."""
    header = tarfile.TarInfo("x")
    header.mode, header.type = 0o444, kind
    block = bytearray(header.tobuf(tarfile.PAX_FORMAT))
    block[124:136] = (num_bytes & ((1 << 96) - 1) | (1 << 95)).to_bytes(12, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + b"x" * 512


GOOD = member("good", b"good")
SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x", "GNU.sparse.realsize": "9999"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD + member("/etc/x", b"x") + END, "no plain path inside"),
        (GOOD + member("a/../../x", b"x") + END, "no plain path inside"),
        (GOOD + member("x", type=tarfile.SYMTYPE, linkname="/etc") + END, "no plain file"),
        (GOOD + member("x", type=tarfile.LNKTYPE, linkname="good") + END, "no plain file"),
        (GOOD + member("x", type=tarfile.CHRTYPE, devmajor=1, devminor=3) + END, "no plain file"),
        (GOOD + member("x", type=tarfile.FIFOTYPE) + END, "no plain file"),
        (GOOD + member("x", b"1\n0\n1\n".ljust(512, b"\0") + b"x", pax_headers=SPARSE) + END, "no plain file"),
        (GOOD + member("x", pax_headers={"SCHILY.xattr.security.capability": "x"}) + END, "its header has"),
        (GOOD + member("x", mode=0o4555) + END, "its header has"),
        (GOOD + member("x\ny") + END, "control character"),
        (GOOD + GOOD + END, "stands twice"),
        (GOOD + member("good/x", b"x") + END, "below a file"),
        (GOOD + bytes(512) + member("hidden", b"x") + END, "does not end behind"),
        (GOOD + b"no header".ljust(512, b"\0") + member("hidden", b"x") + END, "does not end behind"),
        (GOOD + END + b"more", "does not end behind"),
        (GOOD[:-512] + END[:-300], "does not end behind"),
        (GOOD, "does not end behind"),
        (member("cut", b"x" * 2000)[:-900], "ends within it"),
        (of_size(-1024) + END, "its size is below 0"),
        (of_size(-1024, tarfile.XHDTYPE) + END, "length must be"),
        (of_size(-1024, tarfile.GNUTYPE_LONGNAME) + END, "length must be"),
        (of_size(1 << 80, tarfile.XHDTYPE) + END, "cannot fit"),
        (b"", "empty file|does not end"),
        (b"garbage" * 100, "header"),
    ],
)
def test_no_other_archive_is_unpacked(tmp_path: Path, content: bytes, words: str) -> None:
    archive, out = tmp_path / "archive.tar", tmp_path / "above" / "out"
    archive.write_bytes(content)
    out.mkdir(parents=True)
    with pytest.raises(ArchiveError, match=words):
        unpack([archive], out)
    assert {path.name for path in out.rglob("*")} <= {"good", "cut"}
    assert list((tmp_path / "above").iterdir()) == [out]


def test_two_archives_cannot_have_one_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(GOOD + END)
    with pytest.raises(ArchiveError, match="good: it stands twice"):
        unpack([tmp_path / "one", tmp_path / "two"], tmp_path / "out")


def damage(path: Path) -> None:
    path.chmod(0o600)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    path.chmod(0o444)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("change", [damage, link, Path.unlink, lambda path: path.chmod(0o555)])
def test_a_file_that_differs_from_its_archive_is_found(
    folder: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    archives = packed(folder)
    unpack(archives, tmp_path / "out")
    change(tmp_path / "out" / "big" / "b.so")
    assert not is_unpacked(archives, tmp_path / "out")


def test_a_tool_for_tar_reads_an_archive(folder: Path) -> None:
    for path in packed(folder):
        with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
            for member in archive.getmembers():  # no filter of links is needed, and Python before 3.11.4 has none
                archive.extract(member, folder.with_name("by tar"))
    assert content_of(folder.with_name("by tar")) == content_of(folder)
