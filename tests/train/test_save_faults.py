"""A save that failed says on which file system, and of what kind the fault was."""

import errno
import json
from pathlib import Path

import pytest

from muster.train import save_faults
from muster.train.save_faults import Place, SaveFault, place_of

from .train_case import Listening, Training

MOUNTS = [
    "22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw",
    "30 22 0:50 / /mnt rw shared:1 - ext4 /dev/nvme1n1 rw",
    "31 22 0:51 / /mnt/check\\040points rw - nfs4 nfs01:/export/ckpt rw",
    "32 22 0:52 / /mnt/fuse rw - fuse.juicefs JuiceFS:team rw",
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
    ],
)
def test_a_folder_lies_on_the_longest_mount_that_holds_it(folder: str, place: Place) -> None:
    assert place_of(Path(folder), MOUNTS) == place


def test_where_no_mount_is_known_the_folder_is_its_own_place() -> None:
    assert place_of(Path("/srv/runs"), []) == Place("/srv/runs", is_shared=False)
    assert not place_of(Path("/proc/self")).is_shared, "this machine's own table is read"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, "no_space"),
        (errno.EDQUOT, "no_space"),
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


def test_so_many_ranks_are_told_and_none_that_is_at_fault_itself() -> None:
    place = Place("/mnt", is_shared=False)
    faults = [SaveFault(0, "its state cannot be copied")]
    faults += [SaveFault.of(rank, OSError(errno.EIO, "why"), place) for rank in range(1, 40)]
    told = save_faults.told(faults)
    assert [each["rank"] for each in told] == list(range(1, save_faults.MOST_TOLD + 1))
    assert told[0] == {"rank": 1, "kind": "io", "place": "/mnt", "is_shared": False}


@pytest.mark.parametrize(("number", "kind"), [("ENOSPC", "no_space"), ("EROFS", "read_only"), ("ESTALE", "stale")])
def test_the_rank_that_failed_is_told_with_its_place_and_training_goes_on(
    training: Training, tmp_path: Path, number: str, kind: str
) -> None:
    with Listening(tmp_path / "train.sock") as supervisor:
        attempt = training.start(
            num_ranks=2,
            only={1: {"MUSTER_TRAIN_FAILPOINT": f"save.write={number}@1"}},
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
        )
        assert attempt.ended() == [0, 0]
    (failed,) = supervisor.heard("checkpoint", status="failed")
    place = place_of(training.checkpoints)
    assert failed["faults"] == [{"rank": 1, "kind": kind, "place": place.name, "is_shared": place.is_shared}]
    committed = supervisor.heard("checkpoint", status="committed")
    assert {each["place"] for each in committed} == {place.name}
    assert json.dumps(failed)
