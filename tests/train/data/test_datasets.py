"""A dataset as a program asks for it: read once a host, copied whole or not at all, and refused by a file's name."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.train.data import dataset_copies as copies
from muster.train.data import dataset_manifest as manifests
from muster.train.data.dataset_manifest import DatasetError
from muster.train.data.datasets import Dataset, dataset
from tests.train.data.test_dataset_manifest import made
from tests.train.train_case import PATIENCE_S, ROOT


class Host:
    """With a disk of its own for copies."""

    def __init__(self, folder: Path) -> None:
        self.environ = {"MUSTER_SCRATCH_DIR": str(folder), "MUSTER_ATTEMPT_ID": "att_1"}
        self.scratch = folder / f"muster-data-{os.getuid()}"

    def dataset(self, path: Path, *, stage: bool = True) -> Dataset:
        return dataset(path, stage=stage, environ=self.environ)

    def copies(self) -> set[str]:
        return {path.name for path in self.scratch.iterdir() if path.is_dir() and path.name != "seen"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(copies, "room_bytes", lambda _folder: 1 << 40)  # whatever this machine's disk has
    return Host(tmp_path / "scratch")


def corpus(folder: Path, **contents: bytes) -> Path:
    manifests.write(folder, manifests.describe(made(folder, **contents)))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return corpus(tmp_path / "corpus", train__a=b"a" * 1000, train__b=b"b" * 2000)


def test_a_dataset_in_place_is_read_once_and_again_only_when_a_file_has_changed(
    host: Host, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = host.dataset(source, stage=False)
    assert (found.path, found.is_staged, [path.name for path in found.files]) == (source, False, ["a", "b"])
    assert capsys.readouterr().err.count("is as its manifest says") == 1
    host.dataset(source, stage=False)
    assert capsys.readouterr().err == ""
    os.utime(source / "train/a", ns=(1, 1))
    host.dataset(source, stage=False)
    assert capsys.readouterr().err.count("is as its manifest says") == 1


@pytest.mark.parametrize("stage", [False, True])
def test_a_damaged_file_is_refused_by_its_name_and_nothing_is_copied(host: Host, source: Path, *, stage: bool) -> None:
    (source / "train/b").write_bytes(b"b" * 1999 + b"c")
    for _ in range(2):
        with pytest.raises(DatasetError, match=r"train/b .*its SHA-256 is another"):
            host.dataset(source, stage=stage)
    assert host.copies() == set()
    (source / "train/b").write_bytes(b"b" * 2000)
    assert host.dataset(source, stage=stage).is_staged is stage, "mended"


def test_what_was_damaged_once_is_read_again_by_the_next_attempt(host: Host, source: Path) -> None:
    found, seen = manifests.read(source), []
    scratch = copies.scratch_of(Path(host.environ["MUSTER_SCRATCH_DIR"]))
    copies.note_seen(scratch, source, found, fault="train/a is damaged", attempt_id="att_1")
    with pytest.raises(DatasetError, match="train/a is damaged"):
        copies.require_whole(scratch, source, found, "att_1")
    seen.append(copies.require_whole(scratch, source, found, "att_2"))
    assert seen == [True]


def test_a_copy_is_whole_used_again_and_made_again_when_it_has_changed(
    host: Host, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = host.dataset(source)
    assert first.is_staged
    assert [path.read_bytes()[:1] for path in first.files] == [b"a", b"b"]
    assert manifests.differences(first.path, first.manifest) == []
    made_at = first.files[0].stat().st_ino
    capsys.readouterr()
    assert host.dataset(source).files[0].stat().st_ino == made_at
    assert capsys.readouterr().err == "", "neither read back nor copied"
    first.files[0].chmod(0o600)
    first.files[0].write_bytes(b"a" * 999 + b"?")
    again = host.dataset(source)
    assert again.files[0].read_bytes() == b"a" * 1000
    assert "it is copied again" in capsys.readouterr().err


def test_the_longest_unused_copy_gives_way_and_one_in_use_does_not(host: Host, tmp_path: Path) -> None:
    host.environ["MUSTER_SCRATCH_BYTES"] = "7000"
    old, new, third = (corpus(tmp_path / name, x=name.encode() * 600) for name in ("olds", "news", "more"))
    held = [host.dataset(each) for each in (old, new)]
    assert all(each.is_staged for each in held)
    refused = host.dataset(third)
    assert not refused.is_staged
    assert "copies may hold" in refused.why_in_place
    assert refused.files[0].read_bytes() == b"more" * 600
    for number, each in enumerate(held):
        each.close()
        os.utime(host.scratch / f"{each.sha256}.using", (number, number))
    assert host.dataset(third).is_staged
    assert host.copies() == {held[1].sha256, refused.sha256}


def test_a_dataset_larger_than_all_copies_may_be_removes_none_of_them(host: Host, source: Path, tmp_path: Path) -> None:
    host.environ["MUSTER_SCRATCH_BYTES"] = "4000"
    host.dataset(source).close()
    large = host.dataset(corpus(tmp_path / "large", x=b"x" * 5000))
    assert not large.is_staged
    assert host.copies() == {manifests.read(source).sha256}


def test_a_disk_that_fills_up_meanwhile_leaves_nothing_half_copied(
    host: Host, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    found = host.dataset(source)
    assert (found.path, found.why_in_place) == (source, "it could not be copied: [Errno 28] No space left on device")
    assert host.copies() == set()


def test_a_killed_copy_is_cleared_away_by_the_next(host: Host, source: Path) -> None:
    half = copies.scratch_of(Path(host.environ["MUSTER_SCRATCH_DIR"])) / f".{'0' * 64}.partial"
    made(half, x=b"half")
    assert host.dataset(source).is_staged
    assert not half.exists()


def test_a_folder_for_copies_that_others_can_read_is_not_used(host: Host, source: Path) -> None:
    copies.scratch_of(Path(host.environ["MUSTER_SCRATCH_DIR"])).chmod(0o755)
    found = host.dataset(source)
    assert not found.is_staged
    assert "is not a folder of this user's alone" in found.why_in_place


def test_a_place_that_others_may_change_is_not_used_either(host: Host, source: Path) -> None:
    place = Path(host.environ["MUSTER_SCRATCH_DIR"])
    place.mkdir()
    place.chmod(0o777)
    assert "lets others change its content" in host.dataset(source).why_in_place
    place.chmod(0o1777)
    assert host.dataset(source).is_staged


def test_closing_twice_leaves_alone_what_has_the_number_by_then(host: Host, source: Path) -> None:
    found = host.dataset(source)
    found.close()
    others = [os.open(source / "train/a", os.O_RDONLY) for _ in range(2)]
    found.close()
    for other in others:
        assert os.read(other, 1) == b"a"
        os.close(other)


@pytest.mark.parametrize("lock", [".making", ".using"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ENOSPC])
def test_a_disk_that_takes_no_lock_is_done_without(
    host: Host,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lock: str,
    number: int,
) -> None:
    opened = os.open

    def refused(path: str | Path, *args: int) -> int:
        if str(path).endswith(lock):
            raise OSError(number, os.strerror(number))
        return opened(path, *args)

    monkeypatch.setattr(os, "open", refused)
    found = host.dataset(source)
    assert (found.path, os.strerror(number) in found.why_in_place) == (source, True)
    assert f"{source} is read in place: {found.why_in_place}" in capsys.readouterr().err
    assert host.dataset(source, stage=False).path == source
    (source / "train/b").unlink()
    with pytest.raises(DatasetError, match="train/b"):
        host.dataset(source)


def test_where_no_folder_outlives_the_program_nothing_is_copied(
    host: Host, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(copies, "_EVERYBODYS", tmp_path / "own")
    host.environ["MUSTER_SCRATCH_DIR"] = ""
    for _ in range(2):
        found = host.dataset(source)
        assert (found.path, "MUSTER_SCRATCH_DIR is empty" in found.why_in_place) == (source, True)
    assert capsys.readouterr().err.count("is as its manifest says") == 1, "read once for all ranks"
    assert not list((tmp_path / "own").rglob("train"))


def test_a_limit_that_is_no_number_is_refused_by_its_name(host: Host, source: Path) -> None:
    host.environ["MUSTER_SCRATCH_BYTES"] = "10GB"
    with pytest.raises(ValueError, match="MUSTER_SCRATCH_BYTES='10GB': must be a number of bytes"):
        host.dataset(source)


_ONE_RANK = """
import sys
from muster import train
data = train.dataset(sys.argv[1], stage=True)
print(data.path, data.is_staged)
"""


def test_of_several_ranks_at_once_one_copies_and_all_read_the_copy(host: Host, source: Path) -> None:
    """Needs no torch: a dataset is checked before the ranks have met."""
    command = [sys.executable, "-c", _ONE_RANK, str(source)]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **host.environ}
    ranks = [
        subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    said = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    assert {output.strip() for output, _ in said} == {f"{host.scratch / manifests.read(source).sha256} True"}, said
    assert sum(errors.count("is copied to") for _, errors in said) == 1, said
