"""Stored checkpoints are read again, slowly, and pinned ones stay: in a running job, during its training."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import Manifest, UnusableError
from muster.train.checkpoint.retention import PINNED, PINNED_BY_CONTROL_PLANE
from muster.train.checkpoint.retention_thread import RetentionWorker
from muster.train.checkpoint.save_faults import SaveFault
from muster.train.checkpoint.scrub import Scrub, ScrubRule, Stopped, Throttle
from muster.train.checkpoint.storage.disk_store import DiskStore
from muster.train.checkpoint.storage.stores import Store
from muster.train.report.wire import Channel
from muster.train.runtime.environment import Resume
from tests.train.checkpoint.storage.test_object_store import commit as commit_there
from tests.train.checkpoint.test_generations import commit
from tests.train.object_stores import Prefix
from tests.train.train_case import Listening, Training, until

ALWAYS = json.dumps({"interval_s": 0.2, "bytes_per_s": 1e9})


def unhurried() -> Throttle:
    return Throttle(1e12, threading.Event(), lambda: False)


def flip(folder: Path, generation: str) -> None:
    path = folder / generation / "rank-00000.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["disk", "object store"])
def test_the_one_that_was_read_the_longest_ago_is_due_and_damage_is_found_there(
    kind: str, tmp_path: Path, prefix: Prefix
) -> None:
    store: Store = DiskStore(tmp_path) if kind == "disk" else prefix.store()
    for step in (1, 2, 3):
        _ = commit(tmp_path, step) if kind == "disk" else commit_there(prefix.store(), step)
    scrub = Scrub(store, ScrubRule(interval_s=3600.0), unhurried(), second_reading_s=0.0)
    scrub.note_read(Generation(3, 1))
    assert scrub.due(frozenset({"step-00000001/gen-1"})) == Generation(2, 1), "3 was just read, 1 counts for nothing"
    assert scrub.fault_of(Generation(2, 1)) is None
    assert scrub.due(frozenset()) == Generation(1, 1)
    if kind == "disk":
        flip(tmp_path, "step-00000001/gen-1")
    else:
        prefix.flip("step-00000001/gen-1/rank-00000.pt")
    fault = scrub.fault_of(Generation(1, 1))
    assert isinstance(fault, UnusableError)
    assert fault.is_damage
    assert scrub.due(frozenset()) is None, "each was read within the hour"
    assert Scrub(store, ScrubRule(interval_s=0.0), unhurried()).due(frozenset()) is None, "0 turns it off"


@pytest.mark.parametrize("kind", ["disk", "object store"])
def test_what_an_earlier_attempt_read_is_not_read_again_at_once(kind: str, tmp_path: Path, prefix: Prefix) -> None:
    """Both were written long ago, and the attempt that read one of them has ended."""
    store: Store = DiskStore(tmp_path) if kind == "disk" else prefix.store()
    for step in (1, 2):
        _ = commit(tmp_path, step) if kind == "disk" else commit_there(prefix.store(), step)
    rank = Rank(store, ScrubRule(interval_s=3600.0, bytes_per_s=1e9))
    rank.maintenance.note_verified(Generation(2, 1))
    before_s = time.time()
    rank.maintenance._scrub_one()
    assert rank.received("checkpoint_scrubbed") == ["step-00000001/gen-1"]
    (name, read_s), *others = store.read_ones().items()
    assert (name, others) == ("step-00000001/gen-1", [])
    assert read_s == pytest.approx(before_s, abs=60.0)
    assert Scrub(store, ScrubRule(interval_s=3600.0), unhurried()).due(frozenset()) == Generation(2, 1)
    store.mark_read(Generation(2, 1))
    assert Scrub(store, ScrubRule(interval_s=3600.0), unhurried()).due(frozenset()) is None
    assert Scrub(store, ScrubRule(interval_s=0.001), unhurried()).due(frozenset()) is not None, "its time comes again"


def test_the_one_that_training_went_on_from_counts_as_read_and_what_goes_is_not_marked(tmp_path: Path) -> None:
    first, second = commit(tmp_path, 1), commit(tmp_path, 2)
    store = DiskStore(tmp_path)
    rank = Rank(store, ScrubRule(interval_s=0.0))
    rank.maintenance.begin(second)
    until(lambda: set(store.read_ones()) == {second.name}, "its mark")
    rank.maintenance.close()
    rank.maintenance._gone.add(first)
    rank.maintenance._mark_read(first)
    assert set(store.read_ones()) == {second.name}


def test_a_manifest_that_cannot_be_read_makes_its_generation_the_first_to_be_checked(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    commit(tmp_path, 2)
    (tmp_path / "step-00000002/gen-1/MANIFEST.json").write_text("{")
    scrub = Scrub(DiskStore(tmp_path), ScrubRule(interval_s=3600.0), unhurried(), second_reading_s=0.0)
    assert scrub.due(frozenset()) == Generation(2, 1)
    assert isinstance(scrub.fault_of(Generation(2, 1)), UnusableError)


def test_it_waits_for_a_save_and_leaves_when_the_program_ends() -> None:
    stop, is_saving, has_gone_on = threading.Event(), threading.Event(), threading.Event()
    is_saving.set()
    throttle = Throttle(1e9, stop, is_saving.is_set)

    def read() -> None:
        throttle.spent(1000)
        has_gone_on.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert not has_gone_on.wait(0.2)
    is_saving.clear()
    assert has_gone_on.wait(60.0)
    thread.join()
    stop.set()
    with pytest.raises(Stopped):
        throttle.spent(1 << 40)


def test_no_more_is_read_in_a_second_than_is_allowed(tmp_path: Path) -> None:
    """Two files of 701 bytes at 7,010 bytes a second are a fifth of a second, however fast the disk is."""
    generation = commit(tmp_path, 1)
    throttle = Throttle(7010.0, threading.Event(), lambda: False)
    began = time.monotonic()
    DiskStore(tmp_path).verify(generation, throttle.spent)
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("kind", ["disk", "object store"])
def test_a_missing_file_is_damage_only_while_the_manifest_is_there(kind: str, tmp_path: Path, prefix: Prefix) -> None:
    store: Store = DiskStore(tmp_path) if kind == "disk" else prefix.store()
    for step in (1, 2):
        _ = commit(tmp_path, step) if kind == "disk" else commit_there(prefix.store(), step)
    scrub = Scrub(store, ScrubRule(), unhurried(), second_reading_s=0.0)

    def lose(name: str) -> None:
        if kind == "disk":
            (tmp_path / name).unlink()
        else:
            prefix.bucket().delete([f"{name}"])

    lose("step-00000001/gen-1/rank-00000.pt")
    lost = scrub.fault_of(Generation(1, 1))
    assert isinstance(lost, UnusableError)
    assert lost.is_damage, "the rest of it is there"
    lose("step-00000002/gen-1/MANIFEST.json")
    removing = scrub.fault_of(Generation(2, 1))
    assert isinstance(removing, UnusableError)
    assert not removing.is_damage, "a removal begins so"


def test_what_was_out_of_sight_for_a_moment_is_whole(tmp_path: Path) -> None:
    generation = commit(tmp_path, 1)
    store = DiskStore(tmp_path)
    aside = tmp_path / "aside"
    part = tmp_path / generation.name / "rank-00001.pt"
    part.rename(aside)
    back = threading.Timer(0.3, lambda: aside.rename(part))
    back.start()
    scrub = Scrub(store, ScrubRule(), unhurried(), second_reading_s=1.0)
    assert scrub.fault_of(generation) is None
    back.join()


class Rank:
    """Stands for rank 0's maintenance during a training, without one: its messages are kept."""

    def __init__(self, store: Store, rule: ScrubRule, pinned: frozenset[str] | None = None) -> None:
        self.reported: list[tuple[str, dict[str, object]]] = []
        channel = Channel(None)
        channel.send = lambda kind, **fields: self.reported.append((kind, fields))  # type: ignore[method-assign]
        self.maintenance = RetentionWorker(store, channel, Resume(pinned=pinned), rule, fence=1, keep=2)

    def received(self, kind: str) -> list[str]:
        return [str(fields["generation"]) for said, fields in self.reported if said == kind]


def test_generations_that_the_store_lists_no_more_are_not_accused(tmp_path: Path) -> None:
    """The mount goes while a generation is being read, and comes back: nothing is reported, and then it is whole."""
    mount, away = tmp_path / "mount", tmp_path / "away"
    mount.mkdir()
    generation = commit(mount, 1)

    class Leaving(DiskStore):
        """Its mount goes as the first reading begins. ``num_listed``: listings after the second reading began."""

        num_read = num_listed = 0

        def verify(self, generation: Generation, pace: Callable[[int], None] | None = None) -> Manifest:
            if self.num_read == 0:
                mount.rename(away)
            self.num_read += 1
            return super().verify(generation, pace)

        def list_generations(self) -> list[Generation]:
            self.num_listed += self.num_read >= 2
            return super().list_generations()

    store = Leaving(mount)
    rank = Rank(store, ScrubRule(interval_s=0.1, bytes_per_s=1e9))
    rank.maintenance._scrub._second_reading_s = 0.1
    rank.maintenance.begin()
    until(lambda: store.num_listed >= 2, "turn after the one with both readings, which ends by a listing")
    assert rank.reported == []
    away.rename(mount)
    until(lambda: generation.name in rank.received("checkpoint_scrubbed"), "it is read once it is there again")
    rank.maintenance.close()
    assert {kind for kind, _ in rank.reported} == {"checkpoint_scrubbed"}


def test_what_retention_removes_meanwhile_is_not_reported_as_a_fault(tmp_path: Path) -> None:
    """Its manifest is removed and its folder not yet, as on a disk that is slow to remove."""
    first, second = commit(tmp_path, 1), commit(tmp_path, 2)
    newest = [commit(tmp_path, 3), commit(tmp_path, 4)]

    class Slow(DiskStore):
        def verify(self, generation: Generation, pace: Callable[[int], None] | None = None) -> Manifest:
            if generation == first:
                rank.maintenance.verify_behind(newest[-1])
                rank.maintenance.settle()
            return super().verify(generation, pace)

        def remove(self, gone: Iterable[Generation]) -> None:
            for generation in gone:
                (tmp_path / generation.name / "MANIFEST.json").unlink(missing_ok=True)

    rank = Rank(Slow(tmp_path), ScrubRule(interval_s=0.1, bytes_per_s=1e9))
    for each in (second, *newest):
        rank.maintenance.note_verified(each)
    rank.maintenance.begin()
    until(lambda: newest[0].name in rank.received("checkpoint_scrubbed"), "one that is kept, after the one that went")
    rank.maintenance.close()
    assert first.name in rank.received("checkpoint_expired")
    assert rank.received("checkpoint_unreadable") == rank.received("checkpoint_rejected") == []


def test_a_rollback_removes_what_its_attempt_saved_later_and_no_pinned_generation(tmp_path: Path) -> None:
    kept, other = commit(tmp_path, 1), commit(tmp_path, 2)
    pinned = commit(tmp_path, 3)
    rank = Rank(DiskStore(tmp_path), ScrubRule(), frozenset({pinned.name}))
    rank.maintenance.remove_newer(kept)
    assert rank.received("checkpoint_expired") == [other.name]
    assert sorted(DiskStore(tmp_path).list_generations()) == [kept, pinned]
    with pytest.raises(FileExistsError) as taken:
        DiskStore(tmp_path).prepare(pinned)
    fault = SaveFault.of(0, taken.value, DiskStore(tmp_path).place)
    assert (fault.is_name_taken, fault.kind) == (True, "")
    DiskStore(tmp_path).prepare(other)


class Flaky(DiskStore):
    """The first mark that is made fails, and the first that is taken away; so does one listing, oddly."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.faults: dict[str, Exception] = {"pin": OSError(5, "for once"), "unpin": OSError(5, "for once")}

    def _fail(self, what: str) -> None:
        fault = self.faults.pop(what, None)
        if fault is not None:
            raise fault

    def pin(self, generation: Generation, mark: str) -> None:
        self._fail("pin")
        super().pin(generation, mark)

    def unpin(self, generation: Generation, mark: str) -> None:
        self._fail("unpin")
        super().unpin(generation, mark)

    def verify(self, generation: Generation, pace: Callable[[int], None] | None = None) -> Manifest:
        self._fail("verify")
        return super().verify(generation, pace)


def test_a_mark_that_fails_once_is_made_soon_after_and_so_is_one_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.train.checkpoint.retention_thread._CARRY_AGAIN_S", 0.3)
    name = commit(tmp_path, 1).name
    store = Flaky(tmp_path)
    rank = Rank(store, ScrubRule(interval_s=0.0), frozenset({name}))
    rank.maintenance.begin()
    until(lambda: rank.reported != [], "the pin was reported")
    assert store.pinned_ones(PINNED_BY_CONTROL_PLANE) == {name}
    rank.maintenance.pin([])
    until(lambda: len(rank.reported) > 1, "so was its end")
    assert store.pinned_ones(PINNED_BY_CONTROL_PLANE) == frozenset()
    rank.maintenance.close()
    assert [fields["is_pinned"] for _, fields in rank.reported] == [True, False], "each is reported once"


def test_no_fault_of_one_turn_ends_the_care(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name = commit(tmp_path, 1).name
    store = Flaky(tmp_path)
    store.faults = {"verify": ValueError("no one foresaw it"), "pin": ValueError("nor this")}
    rank = Rank(store, ScrubRule(interval_s=0.1, bytes_per_s=1e9), frozenset({name}))
    rank.maintenance.begin()
    until(lambda: rank.received("checkpoint_scrubbed") != [], "the next turn")
    until(lambda: rank.received("checkpoint_pinned") != [], "the mark, tried again")
    rank.maintenance.close()
    told = capfd.readouterr().err
    assert "no one foresaw it" in told
    assert "nor this" in told


def test_a_pin_waits_for_no_scrub(tmp_path: Path) -> None:
    """At 10 bytes a second the reading of 1,402 bytes takes two minutes."""
    name = commit(tmp_path, 1).name
    store = DiskStore(tmp_path)
    has_begun = threading.Event()
    original = store.verify

    def verify(generation: Generation, pace: Callable[[int], None] | None = None) -> Manifest:
        has_begun.set()
        return original(generation, pace)

    store.verify = verify  # type: ignore[method-assign]
    rank = Rank(store, ScrubRule(interval_s=0.1, bytes_per_s=10.0), frozenset())
    rank.maintenance.begin()
    assert has_begun.wait(30.0)
    began = time.monotonic()
    rank.maintenance.pin([name])
    until(lambda: rank.received("checkpoint_pinned") == [name], "the mark")
    assert time.monotonic() - began < 30.0
    rank.maintenance.close()


def test_damage_of_an_older_generation_is_reported_while_training_goes_on_and_it_is_no_candidate_any_more(
    training: Training, tmp_path: Path
) -> None:
    training.run("--steps", "8")
    older = "step-00000004/gen-1"
    flip(training.checkpoints, older)
    with Listening(tmp_path / "train.sock") as supervisor:
        attempt = training.start(
            "--steps",
            "100000",
            "--every",
            "0",
            "--sleep",
            "0.01",
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
            MUSTER_SCRUB=ALWAYS,
        )
        supervisor.wait_for("checkpoint_scrubbed", generation="step-00000008/gen-1")
        supervisor.wait_for("checkpoint_rejected", generation=older)
        (told,) = supervisor.received("checkpoint_rejected")
        assert "rank-00000.pt differs from what was saved" in told["why"]
        supervisor.report({"type": "stop", "reason": "drain"})
        assert attempt.ended() == [75]
        assert len(supervisor.received("checkpoint_rejected")) == 1, "reported once"
    assert older in training.generations(), "no removal of a checkpoint that may be inspected"


def test_a_pin_is_marked_in_the_store_and_retention_leaves_it_with_a_server_and_without(
    training: Training, tmp_path: Path
) -> None:
    pinned, by_hand = "step-00000004/gen-1", "step-00000008/gen-1"
    store = DiskStore(training.checkpoints)
    with Listening(tmp_path / "train.sock") as supervisor:
        started = tmp_path / "go"
        attempt = training.start(
            "--steps",
            "60",
            "--after",
            str(started),
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
            MUSTER_RESUME=json.dumps({"good_after_steps": 1, "hold_s": 0, "pinned": []}),
        )
        supervisor.wait_for_connection()
        supervisor.report({"type": "pins", "generations": [pinned]})
        started.touch()
        assert attempt.ended() == [0]
        assert supervisor.received("checkpoint_expired"), "retention was running"
    assert pinned in training.generations()
    assert by_hand not in training.generations()
    training.run("--steps", "64", MUSTER_RESUME=json.dumps({"pinned": [pinned]}))
    assert store.pinned_ones(PINNED_BY_CONTROL_PLANE) == {pinned}
    kept = next(name for name in sorted(training.generations(), reverse=True) if "gen-1" in name)
    kept_one = Generation.named(kept)
    assert kept_one is not None
    store.pin(kept_one, PINNED)
    training.run("--steps", "128", MUSTER_RESUME=json.dumps({"good_after_steps": 1, "hold_s": 0}))
    assert {pinned, kept} <= set(training.generations()), "a run without a message of pins finds the marks"
    with Listening(tmp_path / "again.sock") as supervisor:
        attempt = training.start(
            "--steps",
            "100000",
            "--every",
            "4",
            "--sleep",
            "0.002",
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
            MUSTER_RESUME=json.dumps({"good_after_steps": 1, "hold_s": 0, "pinned": []}),
        )
        supervisor.wait_for("checkpoint_pinned", generation=pinned, is_pinned=False)
        supervisor.wait_for("checkpoint_expired", generation=pinned)
        supervisor.report({"type": "stop", "reason": "drain"})
        assert attempt.ended() == [75]
    until(lambda: kept in training.generations(), "the one that was pinned by hand")
