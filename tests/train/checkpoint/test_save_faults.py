"""A save that failed says on which file system, and of what kind the fault was."""

import errno
import json
import os
from pathlib import Path

import pytest

from muster.train.checkpoint import save_faults
from muster.train.checkpoint.save_faults import Place, SaveFault, place_of
from tests.train.train_case import Listening, Training

MOUNTS = [
    "22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw",
    "30 22 0:50 / /mnt rw shared:1 - ext4 /dev/nvme1n1 rw",
    "31 22 0:51 / /mnt/check\\040points rw - nfs4 nfs01:/export/ckpt rw",
    "32 22 0:52 / /mnt/fuse rw - fuse.juicefs JuiceFS:team rw",
    "33 22 0:53 / /mnt/s3 rw - fuse.s3fs s3fs rw",
    "34 22 0:54 / /mnt/mp rw - fuse mountpoint-s3 rw",
    "35 22 0:55 / /mnt/vm rw - virtiofs myfs rw",
    "36 22 0:56 / /mnt/9p rw - 9p hostshare rw",
    "37 22 0:57 / /mnt/bound rw - fuse.bindfs /srv/data rw",
    "38 22 0:58 / /mnt/ssh rw - fuse.sshfs me@store:/data rw",
    "39 22 0:59 / /mnt/tag\\040x\\043 rw - nfs4 nfs01:/a\\043b rw",
    "40 22 0:60 / /mnt/\x85odd rw - ext4 /dev/sdb rw",
    "what is no line",
]


@pytest.mark.parametrize(
    ("folder", "place"),
    [
        ("/srv/runs", Place("/", is_shared=False)),
        ("/mnt/job", Place("/mnt", is_shared=False)),
        ("/mnt/check points/job", Place("nfs01:/export/ckpt", is_shared=True)),
        ("/mnt/check pointsX", Place("/mnt", is_shared=False)),
        ("/mnt/fuse/job", Place("JuiceFS:team", is_shared=True)),
        ("/mnt/s3/job", Place("/mnt/s3", is_shared=False)),
        ("/mnt/mp/job", Place("/mnt/mp", is_shared=False)),
        ("/mnt/vm/job", Place("/mnt/vm", is_shared=False)),
        ("/mnt/9p/job", Place("/mnt/9p", is_shared=False)),
        ("/mnt/bound/job", Place("/mnt/bound", is_shared=False)),
        ("/mnt/ssh/job", Place("me@store:/data", is_shared=True)),
        ("/mnt/tag x#/job", Place("nfs01:/a#b", is_shared=True)),
        ("/mnt/\x85odd/job", Place("/mnt/\x85odd", is_shared=False)),
    ],
)
def test_a_folder_lies_on_the_longest_mount_that_holds_it(folder: str, place: Place) -> None:
    assert place_of(Path(folder), MOUNTS) == place


def test_where_no_mount_is_known_the_folder_is_its_own_place() -> None:
    assert place_of(Path("/srv/runs"), []) == Place("/srv/runs", is_shared=False)
    assert not place_of(Path("/proc/self")).is_shared, "this machine's own table is read"


def test_a_mount_point_that_is_no_utf_8_ends_nothing_and_is_reported_as_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    table = b"22 1 259:1 / / rw - ext4 /dev/a rw\n23 22 0:9 / /mnt/caf\xe9 rw - ext4 /dev/b rw\n"
    original = Path.read_text

    def read_text(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        if str(path) == "/proc/self/mountinfo":
            return table.decode(encoding or "utf-8", errors or "strict")
        return original(path, encoding, errors)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert place_of(Path("/srv/runs")) == Place("/", is_shared=False)
    place = place_of(Path(os.fsdecode(b"/mnt/caf\xe9/job")))
    assert place == Place("/mnt/caf?", is_shared=False)
    place.name.encode()


def test_where_a_folder_cannot_be_resolved_it_is_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_of(Path("/srv/a\0b")) == Place("/srv/a\0b", is_shared=False)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert place_of(Path("here")) == Place("here", is_shared=False)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, "no_space"),
        (errno.EDQUOT, "refused"),
        (errno.EROFS, "read_only"),
        (errno.ESTALE, "stale"),
        (errno.ETIMEDOUT, "timeout"),
        (errno.EACCES, "refused"),
        (errno.EIO, "io"),
        (errno.EEXIST, ""),
        (errno.EAGAIN, ""),
    ],
)
def test_each_fault_has_its_kind_and_what_is_nobodys_has_none(number: int, kind: str) -> None:
    assert SaveFault.of(3, OSError(number, "why"), Place("/mnt", is_shared=False)).kind == kind


def test_so_many_ranks_are_reported_and_none_that_is_at_fault_itself() -> None:
    place = Place("/mnt", is_shared=False)
    faults = [SaveFault(0, "its state cannot be copied")]
    faults += [SaveFault.of(rank, OSError(errno.EIO, "why"), place) for rank in range(1, 40)]
    told = save_faults.documents_of(faults)
    assert [each["rank"] for each in told] == list(range(1, save_faults.MAX_REPORTED + 1))
    assert told[0] == {"rank": 1, "kind": "io", "place": "/mnt", "is_shared": False}


@pytest.mark.parametrize(("number", "kind"), [("ENOSPC", "no_space"), ("EROFS", "read_only"), ("ESTALE", "stale")])
def test_the_rank_that_failed_is_reported_with_its_place_and_training_goes_on(
    training: Training, tmp_path: Path, number: str, kind: str
) -> None:
    with Listening(tmp_path / "train.sock") as supervisor:
        attempt = training.start(
            num_ranks=2,
            only={1: {"MUSTER_TRAIN_FAILPOINT": f"save.write={number}@1"}},
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
        )
        assert attempt.ended() == [0, 0]
    (failed,) = supervisor.received("checkpoint", status="failed")
    place = place_of(training.checkpoints)
    assert failed["faults"] == [{"rank": 1, "kind": kind, "place": place.name, "is_shared": place.is_shared}]
    committed = supervisor.received("checkpoint", status="committed")
    assert {each["place"] for each in committed} == {place.name}
    assert json.dumps(failed)
