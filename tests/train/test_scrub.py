"""What is kept is read again, slowly, and what is pinned stays: in a running job, beside its training."""

import json
import threading
import time
from pathlib import Path

import pytest

from muster.train.disk_store import DiskStore
from muster.train.generations import Generation
from muster.train.manifest import UnusableError
from muster.train.retention import PINNED, PINNED_BY_CONTROL_PLANE
from muster.train.scrub import Scrub, ScrubRule, Stopped, Throttle
from muster.train.stores import Store

from .object_stores import Prefix
from .test_generations import commit
from .test_object_store import commit as commit_there
from .train_case import Listening, Training, until

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
    scrub = Scrub(store, ScrubRule(interval_s=3600.0), unhurried())
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


def test_a_manifest_that_cannot_be_read_makes_its_generation_the_first_to_be_looked_at(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    commit(tmp_path, 2)
    (tmp_path / "step-00000002/gen-1/MANIFEST.json").write_text("{")
    scrub = Scrub(DiskStore(tmp_path), ScrubRule(interval_s=3600.0), unhurried())
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


def test_damage_of_an_older_generation_is_told_while_training_goes_on_and_it_is_no_candidate_any_more(
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
        (told,) = supervisor.heard("checkpoint_rejected")
        assert "rank-00000.pt differs from what was saved" in told["why"]
        supervisor.tell({"type": "stop", "reason": "drain"})
        assert attempt.ended() == [75]
        assert len(supervisor.heard("checkpoint_rejected")) == 1, "said once"
    assert older in training.generations(), "nobody removes what may be looked at"


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
        supervisor.tell({"type": "pins", "generations": [pinned]})
        started.touch()
        assert attempt.ended() == [0]
        assert supervisor.heard("checkpoint_expired"), "retention was at work"
    assert pinned in training.generations()
    assert by_hand not in training.generations()
    training.run("--steps", "64", MUSTER_RESUME=json.dumps({"pinned": [pinned]}))
    assert store.pinned_ones(PINNED_BY_CONTROL_PLANE) == {pinned}
    kept = next(name for name in sorted(training.generations(), reverse=True) if "gen-1" in name)
    kept_one = Generation.named(kept)
    assert kept_one is not None
    store.pin(kept_one, PINNED)
    training.run("--steps", "128", MUSTER_RESUME=json.dumps({"good_after_steps": 1, "hold_s": 0}))
    assert {pinned, kept} <= set(training.generations()), "a run that nobody told of pins finds the marks"
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
        supervisor.tell({"type": "stop", "reason": "drain"})
        assert attempt.ended() == [75]
    until(lambda: kept in training.generations(), "the one that was pinned by hand")
