"""A host's copy of a folder: as its owner had it, whole or not there, writable by no job, and verified."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.content.faults import DamagedError
from muster.content.manifest import CHUNK_BYTES, Kind, Manifest
from muster.content.read import read_chunk, read_folder
from muster.content.tree import remove_folder, verify_folder, write_folder

NAMES = st.text("aé 🙂-~*[", min_size=1, max_size=6)
FILES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=64), max_size=8)


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def taken(folder: Path) -> tuple[Manifest, Callable[[str], bytes]]:
    """Return the manifest of a folder, and its chunks by digest."""
    manifest = read_folder(folder).manifest
    chunks = {
        digest: read_chunk(folder, entry, number)
        for entry in manifest.entries
        if entry.kind <= Kind.PROGRAM
        for number, digest in enumerate(entry.parts)
    }
    return manifest, chunks.__getitem__


@pytest.fixture(name="work")
def fixture_work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "src/empty").mkdir(parents=True)
    (work / "src/big").write_bytes(b"x" * CHUNK_BYTES + b"tail")
    (work / "src/copy").write_bytes(b"x" * CHUNK_BYTES)
    (work / "run").write_bytes(b"#!/bin/sh")
    (work / "run").chmod(0o755)
    (work / "none").touch()
    (work / "link").symlink_to("src/empty")
    return work


@pytest.fixture(name="copy")
def fixture_copy(work: Path, tmp_path: Path) -> Path:
    write_folder(*_of(work, tmp_path / "copy"))
    return tmp_path / "copy"


def _of(work: Path, target: Path) -> tuple[Manifest, Path, Callable[[str], bytes]]:
    manifest, fetch = taken(work)
    return manifest, target, fetch


def test_the_copy_has_the_digest_of_the_folder_and_no_write_permission(work: Path, copy: Path) -> None:
    assert read_folder(copy).digest == read_folder(work).digest
    verify_folder(read_folder(work).manifest, copy)
    assert {path.lstat().st_mode & 0o222 for path in copy.rglob("*") if not path.is_symlink()} == {0}
    assert copy.stat().st_mode & 0o777 == 0o555
    remove_folder(copy)
    assert not copy.exists()
    remove_folder(copy)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=FILES)
def test_any_folder_comes_back_from_its_manifest(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    root = tmp_path_factory.mktemp("any")
    (root / "work").mkdir()
    for name, content in files.items():
        path = root / "work" / name
        if any(above.is_file() for above in path.parents) or path.is_dir():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    manifest, target, fetch = _of(root / "work", root / "copy")
    write_folder(manifest, target, fetch)
    verify_folder(manifest, target)
    assert read_folder(target).manifest == manifest


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda copy: (copy / "run").write_bytes(b"#!/bin/SH"), "run differs"),
        (lambda copy: (copy / "run").chmod(0o755), "run differs"),
        (lambda copy: (copy / "none").write_bytes(b"1"), "none differs"),
        (lambda copy: (copy / "src/big").write_bytes(b"x" * CHUNK_BYTES + b"tale"), "src/big differs"),
        (lambda copy: (copy / "none").unlink(), "none is missing"),
        (lambda copy: (copy / "src/empty").rmdir(), "src/empty is missing"),
        (lambda copy: (copy / "more").touch(), "more is not of it"),
        (lambda copy: (copy / "src/empty/sub").mkdir(), "src/empty/sub is not of it"),
        (lambda copy: ((copy / "link").unlink(), (copy / "link").symlink_to("run")), "link differs"),
        (lambda copy: ((copy / "run").unlink(), (copy / "run").symlink_to("none")), "run differs"),
        (lambda copy: ((copy / "none").unlink(), make_pipe(copy / "none")), "none differs"),
    ],
)
def test_each_damage_of_a_copy_is_found(work: Path, copy: Path, damage: Callable[[Path], object], fault: str) -> None:
    copy.chmod(0o755)
    (copy / "src").chmod(0o755)
    (copy / "src/empty").chmod(0o755)
    damage(copy)
    with pytest.raises(DamagedError, match=fault):
        verify_folder(read_folder(work).manifest, copy)


@pytest.mark.parametrize("change", [lambda chunk: chunk[:-1], lambda chunk: chunk + b"x", lambda chunk: chunk.upper()])
def test_a_wrong_chunk_leaves_nothing(work: Path, tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    manifest, fetch = taken(work)
    with pytest.raises(DamagedError, match="does not match its digest"):
        write_folder(manifest, tmp_path / "hosts/copy", lambda digest: change(fetch(digest)))
    assert not list((tmp_path / "hosts").iterdir())


def test_a_folder_that_exists_is_not_written_over(work: Path, copy: Path) -> None:
    manifest, fetch = taken(work)
    with pytest.raises(FileExistsError, match="exists"):
        write_folder(manifest, copy, fetch)
    verify_folder(manifest, copy)
