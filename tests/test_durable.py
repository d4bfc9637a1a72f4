"""Files that survive a crash: whole or not there, private, and no draft left behind."""

import errno
import os
from pathlib import Path

import pytest

from muster.durable import create_durably, place_durably, write_durably


def test_a_file_is_replaced_whole_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_durably(path, b"one, and longer")
    write_durably(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


def test_what_exists_is_never_created_again(tmp_path: Path) -> None:
    path = tmp_path / "node_key"
    assert create_durably(path, b"first")
    assert not create_durably(path, b"second")
    assert path.read_bytes() == b"first"
    assert [each.name for each in tmp_path.iterdir()] == ["node_key"]


def test_a_file_that_is_written_in_pieces_is_moved_whole(tmp_path: Path) -> None:
    draft, path = tmp_path / "draft", tmp_path / "chunk"
    path.write_bytes(b"old")
    with draft.open("wb", buffering=0) as file:
        file.write(b"in ")
        file.write(b"pieces")
        place_durably(draft, file.fileno(), path)
    assert path.read_bytes() == b"in pieces"
    assert [each.name for each in tmp_path.iterdir()] == ["chunk"]


def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger"
    write_durably(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("muster.durable.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["ledger"]
