"""A missing file is looked for again, and any other fault is one at once."""

import threading
from pathlib import Path

import pytest

from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import UnusableError
from muster.train.checkpoint.save_faults import Place
from muster.train.checkpoint.scrub import ScrubRule
from muster.train.checkpoint.storage.disk_store import DiskStore
from muster.train.checkpoint.storage.late_files import LATE_ELSEWHERE_S, LATE_ON_SHARED_S, GivenUpError, LateFiles
from muster.train.checkpoint.storage.stores import Store
from tests.train.checkpoint.storage.test_object_store import commit as commit_there
from tests.train.checkpoint.test_generations import commit
from tests.train.checkpoint.test_scrub import Rank, flip
from tests.train.object_stores import Prefix

Never = ScrubRule(interval_s=0.0)


class Late(DiskStore):
    """A folder whose files may be seen up to ``late_s`` after they were written."""

    late_s = 1.5


def comes_back(path: Path, after_s: float) -> threading.Timer:
    """It is out of sight from now on, for so long."""
    aside = path.with_name(f".{path.name}.aside")
    path.rename(aside)
    timer = threading.Timer(after_s, lambda: aside.rename(path))
    timer.start()
    return timer


def checked(fault: UnusableError, times: list[float]) -> None:
    times.append(1.0)
    raise fault


def test_what_is_missing_is_searched_until_its_time_is_over(capfd: pytest.CaptureFixture[str]) -> None:
    waited: list[float] = []
    missing, looks = UnusableError("gone", is_missing=True), list[float]()
    with pytest.raises(UnusableError, match="gone"):
        LateFiles(0.3).read(lambda: checked(missing, looks))
    assert len(looks) > 2
    assert capfd.readouterr().err == "muster.train: gone; it may show late: waiting up to 0.3 s\n", "reported once"

    def wait(pause_s: float) -> bool:
        waited.append(pause_s)
        return len(waited) > 3

    with pytest.raises(GivenUpError):
        LateFiles(60.0, wait).read(lambda: checked(missing, looks))
    assert waited == sorted(waited), "it looks less and less often"


def test_all_that_is_missing_has_one_time_together() -> None:
    late, looks = LateFiles(0.2), list[float]()
    missing = UnusableError("gone", is_missing=True)
    with pytest.raises(UnusableError):
        late.read(lambda: checked(missing, looks))
    looks.clear()
    with pytest.raises(UnusableError):
        late.read(lambda: checked(missing, looks))
    assert len(looks) == 1


def test_a_fault_that_is_no_missing_file_is_one_at_once() -> None:
    looks = list[float]()
    with pytest.raises(UnusableError, match="differs"):
        LateFiles(60.0).read(lambda: checked(UnusableError("it differs"), looks))
    assert len(looks) == 1


def test_a_file_system_that_hosts_share_is_waited_for_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_shared, late_s in ((False, LATE_ELSEWHERE_S), (True, LATE_ON_SHARED_S)):
        monkeypatch.setattr(
            "muster.train.checkpoint.storage.disk_store.place_of",
            lambda _, is_shared=is_shared: Place("/mnt", is_shared),
        )
        assert DiskStore(tmp_path).late_s == late_s


@pytest.mark.parametrize("name", ["rank-00001.pt", "MANIFEST.json"])
def test_a_save_whose_file_shows_late_is_verified(tmp_path: Path, name: str) -> None:
    generation = commit(tmp_path, 1)
    rank = Rank(Late(tmp_path), Never)
    back = comes_back(tmp_path / generation.name / name, 0.4)
    rank.maintenance.verify_behind(generation)
    rank.maintenance.settle()
    back.join()
    assert [(kind, fields["status"]) for kind, fields in rank.reported] == [("checkpoint", "verified")]


def test_one_whose_file_never_shows_is_rejected(tmp_path: Path) -> None:
    generation = commit(tmp_path, 1)
    (tmp_path / generation.name / "rank-00001.pt").unlink()
    rank = Rank(Late(tmp_path), Never)
    rank.maintenance.verify_behind(generation)
    rank.maintenance.settle()
    assert rank.received("checkpoint_rejected") == [generation.name]


def test_a_lost_object_is_rejected_too(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.train.checkpoint.storage.object_store.LATE_ELSEWHERE_S", 0.2)
    commit_there(prefix.store(), 1)
    prefix.bucket().delete(["step-00000001/gen-1/rank-00000.pt"])
    store: Store = prefix.store()
    rank = Rank(store, Never)
    rank.maintenance.verify_behind(Generation(1, 1))
    rank.maintenance.settle()
    assert rank.received("checkpoint_rejected") == ["step-00000001/gen-1"]


def test_damage_is_rejected_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Late, "late_s", 3600.0)
    generation = commit(tmp_path, 1)
    flip(tmp_path, generation.name)
    rank = Rank(Late(tmp_path), Never)
    rank.maintenance.verify_behind(generation)
    rank.maintenance.settle()
    assert rank.received("checkpoint_rejected") == [generation.name]


def test_what_ends_waits_for_no_late_file_and_condemns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Late, "late_s", 3600.0)
    generation = commit(tmp_path, 1)
    (tmp_path / generation.name / "rank-00001.pt").unlink()
    rank = Rank(Late(tmp_path), Never)
    rank.maintenance.verify_behind(generation)
    rank.maintenance.settle(0.2)
    rank.maintenance.verify_behind(generation)
    rank.maintenance.close()
    rank.maintenance.settle()
    assert rank.reported == []
