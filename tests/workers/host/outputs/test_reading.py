"""What a program left is read with its user's rights, within the limits, and the rest is named."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.content.faults import ChangedFileError
from muster.content.files import read_chunk_at
from muster.content.manifest import Manifest, decode
from tests.workers.host.supervisor.user_case import needs_users, own_uid
from workers.host.outputs import reading
from workers.host.outputs.patterns import Patterns
from workers.host.outputs.reading import Limits, Outputs
from workers.host.outputs.tree import OutputTree
from workers.host.supervisor.user.job_user import JobUser

US = JobUser(None, None)
ALL = ("**",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "left"
    (found / "models").mkdir(parents=True)
    (found / "models" / "a.pt").write_bytes(b"weights" * 1000)
    (found / "run.sh").write_bytes(b"#!/bin/sh\n")
    (found / "run.sh").chmod(0o755)
    return found


@pytest.fixture
def tree(folder: Path) -> Iterator[OutputTree]:
    found = OutputTree.at(folder, US, is_ours=True)
    yield found
    found.close()


def outputs_of(tree: OutputTree, *patterns: str, max_bytes: int = 1 << 30, max_files: int = 1000) -> Outputs:
    found = Outputs(Limits(max_bytes, max_files))
    found.add(tree, Patterns(patterns or ALL))
    found.keep_within_limit()
    return found


def manifest_of(outputs: Outputs) -> Manifest:
    return decode(outputs.read().manifest)


def paths_of(outputs: Outputs) -> list[str]:
    return [entry.path for entry in manifest_of(outputs).entries]


def test_files_and_links_inside_are_read(folder: Path, tree: OutputTree) -> None:
    (folder / "newest").symlink_to("models/a.pt")
    outputs = outputs_of(tree)
    entries = manifest_of(outputs).entries
    assert [(one.path, int(one.kind), one.num_bytes) for one in entries] == [
        ("models/a.pt", 0, 7000),
        ("newest", 2, 0),
        ("run.sh", 1, 10),
    ]
    assert outputs.left_out.count == 0
    content = outputs.read()
    [digest] = entries[0].parts
    found, start = content.source.files[digest]
    with content.source.opened(found) as file:
        assert os.pread(file.fileno(), 7000, start) == b"weights" * 1000


def test_what_is_no_file_of_the_job_is_left_out_and_named(folder: Path, tree: OutputTree) -> None:
    (folder / "of-the-host").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("../other")
    (folder / "etc").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    (folder / "two\nlines").write_text("x")
    (folder / os.fsdecode(b"\xff")).write_text("x")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
        outputs = outputs_of(tree)
        assert paths_of(outputs) == ["models/a.pt", "run.sh"]
    assert sorted(outputs.left_out.paths) == sorted(
        ["etc", "of-the-host", "pipe", "socket", "two\\nlines", "up", "\\udcff"]
    )
    assert outputs.left_out.count == 7


def test_a_pattern_follows_no_link(folder: Path, tree: OutputTree) -> None:
    (folder / "etc").symlink_to("/etc")
    patterns = Patterns(["etc/passwd", "models/../run.sh"])
    outputs = Outputs(Limits(1 << 30, 10))
    outputs.add(tree, patterns)
    assert outputs.found == {}
    assert patterns.without_file == ["etc/passwd", "models/../run.sh"]


def test_a_folder_that_becomes_a_link_is_not_followed(folder: Path, tree: OutputTree, tmp_path: Path) -> None:
    outputs = outputs_of(tree)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.pt").write_bytes(b"of another")
    (folder / "models").rename(folder / "before")
    (folder / "models").symlink_to(tmp_path / "secret")
    assert paths_of(outputs) == ["run.sh"]
    assert outputs.left_out.paths == ["models/a.pt"]


def test_the_largest_are_left_out_where_all_are_too_large(folder: Path, tree: OutputTree) -> None:
    (folder / "small").write_bytes(b"x" * 100)
    outputs = outputs_of(tree, max_bytes=200)
    assert paths_of(outputs) == ["run.sh", "small"]
    assert outputs.left_out.words == (
        "models/a.pt: all files have 7.11 kB, and 200 B are collected: the largest are left out"
    )


def test_of_too_many_files_some_are_left_out(folder: Path, tree: OutputTree) -> None:
    for number in range(20):
        (folder / f"{number:02}").touch()
    outputs = outputs_of(tree, max_files=5)
    assert len(paths_of(outputs)) == 5
    assert "there are more than the 5 files" in outputs.left_out.words


def test_a_file_of_the_output_folder_comes_first(folder: Path, tree: OutputTree, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "run.sh").mkdir(parents=True)
    (work / "run.sh" / "inner").write_text("x")
    (work / "models").write_text("a file")
    (work / "more").write_text("x")
    outputs = outputs_of(tree)
    other = OutputTree.at(work, US, is_ours=True)
    outputs.add(other, Patterns(ALL))
    assert paths_of(outputs) == ["models/a.pt", "more", "run.sh"]
    assert sorted(outputs.left_out.paths) == ["models", "run.sh/inner"]
    other.close()


def test_a_file_that_changes_while_it_is_read_is_named(
    folder: Path, tree: OutputTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(file: int, start: int) -> bytes:
        content = read_chunk_at(file, start)
        if content.startswith(b"weights"):
            with (folder / "models" / "a.pt").open("ab") as growing:
                growing.write(b"more")
        return content

    monkeypatch.setattr(reading, "read_chunk_at", changing)
    outputs = outputs_of(tree)
    assert paths_of(outputs) == ["run.sh"]
    assert (outputs.changed.paths, outputs.left_out.paths) == (["models/a.pt"], [])


def test_a_file_that_changes_before_its_upload_is_named(folder: Path, tree: OutputTree) -> None:
    content = outputs_of(tree).read()
    found = next(one for one, _ in content.source.files.values() if one.path == "run.sh")
    (folder / "run.sh").write_bytes(b"#!/bin/false\n")
    with pytest.raises(ChangedFileError) as caught:
        content.source.opened(found)
    assert caught.value.path == "run.sh"


def test_copies_are_whole(folder: Path, tree: OutputTree, tmp_path: Path) -> None:
    (folder / "newest").symlink_to("models/a.pt")
    large = os.urandom(9 << 20)
    (folder / "large").write_bytes(large)
    (tmp_path / "copy").mkdir()
    outputs_of(tree).copy(tmp_path / "copy")
    (folder / "large").write_bytes(b"of the next step")
    assert (tmp_path / "copy" / "large").read_bytes() == large
    assert (tmp_path / "copy" / "newest").readlink() == Path("models/a.pt")
    copied = OutputTree.at(tmp_path / "copy", US, is_ours=True)
    assert [int(entry.kind) for entry in manifest_of(outputs_of(copied)).entries] == [0, 0, 2, 1]
    copied.close()


@needs_users
def test_a_user_gets_only_what_it_may_read(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, own_uid(), own_uid())
    (folder / "of-root").write_bytes(b"secret")
    (folder / "of-root").chmod(0o600)
    os.link(folder / "of-root", folder / "linked")
    (folder / "closed").mkdir(mode=0o700)
    (folder / "closed" / "inner").write_bytes(b"secret")
    tree = OutputTree.at(folder, JobUser(own_uid(), None), is_ours=True)
    outputs = outputs_of(tree)
    assert paths_of(outputs) == ["models/a.pt", "run.sh"]
    assert sorted(outputs.left_out.paths) == ["closed", "linked", "of-root"]
    assert os.geteuid() == 0
    tree.close()
    with pytest.raises(PermissionError):
        OutputTree.at(folder / "closed", JobUser(own_uid(), None), is_ours=False)


def test_a_device_is_never_opened(folder: Path, tree: OutputTree, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT CHECKED: only root makes a device")
    try:
        os.mknod(folder / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("NOT CHECKED: this container makes no device")
    opened: list[object] = []
    real = os.open

    def opening(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened.append(path)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", opening)
    outputs = outputs_of(tree)
    assert paths_of(outputs) == ["models/a.pt", "run.sh"]
    assert outputs.left_out.paths == ["zero"]
    assert "zero" not in opened
