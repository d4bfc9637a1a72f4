"""An interrupted training continues at the exact next step, bit for bit, from the newest generation that verifies."""

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import MANIFEST
from muster.train.checkpoint.storage.disk_store import DiskStore
from muster.train.data.samples import sample_at
from muster.train.runtime.exit_codes import EXIT_SAVE_FAILED
from tests.train.checkpoint.test_generations import rewritten

from .marks import TRAINS
from .train_case import Attempt, Listening, Training, until

pytestmark = TRAINS
Steps = dict[int, list[str]]


def between(steps: list[Steps], first: int, last: int) -> list[Steps]:
    return [{step: rank[step] for step in range(first, last + 1)} for rank in steps]


def went_on(attempt: Attempt, undisturbed: list[Steps], first: int, at_least: int) -> None:
    """It began at ``first`` and did each step as the undisturbed run, for as long as it lived."""
    for steps, whole in zip(attempt.steps, undisturbed, strict=True):
        assert len(steps) >= at_least
        assert steps == {step: whole[step] for step in range(first, first + len(steps))}


@pytest.mark.parametrize("mode", ["", "--synchronous"])
def test_killed_in_the_middle_of_a_save_it_goes_on_bit_for_bit(
    training: Training, undisturbed: list[Steps], mode: str
) -> None:
    """Losses and averaged weights; each rank's random numbers, running means and samples."""
    arguments = [mode] if mode else []
    first = training.start(*arguments, num_ranks=2, only={0: {"MUSTER_TRAIN_FAILPOINT": "save.after_commit"}})
    assert -9 in first.ended()
    went_on(first, undisturbed, 1, 4)
    second = training.start(*arguments, num_ranks=2, only={0: {"MUSTER_TRAIN_FAILPOINT": "save.before_commit"}})
    assert -9 in second.ended()
    went_on(second, undisturbed, 5, 4)
    assert "step-00000008/gen-2" not in training.generations(), "it died before the commit"
    third = training.run(*arguments, num_ranks=2)
    assert third.steps == between(undisturbed, 5, 12)
    assert not any("partial" in name for name in training.generations()), "what was half written was removed"


def test_four_ranks_add_up_in_one_order_before_and_after_a_resume(training: Training) -> None:
    """DDP lays its buckets out again after its first step; from three ranks on, its sums depend on the layout."""
    length = ("--steps", "16", "--every", "5", "--width", "64")
    whole = training.run(*length, num_ranks=4).steps
    shutil.rmtree(training.checkpoints)
    first = training.start(*length, num_ranks=4, only={0: {"MUSTER_TRAIN_FAILPOINT": "save.after_commit"}})
    assert -9 in first.ended()
    resumed = training.run(*length, num_ranks=4).steps
    assert min(resumed[0]) == 6
    assert resumed == between(whole, 6, 16)


def test_random_numbers_and_running_means_are_each_ranks_own(undisturbed: list[Steps]) -> None:
    for step in range(1, 13):
        for first, second in zip(*(rank[step][:3] for rank in undisturbed), strict=True):
            assert first != second


def test_each_epoch_holds_every_sample_once_across_changing_numbers_of_ranks(training: Training) -> None:
    """64 samples, 4 a rank and step: stopped on 4 ranks, on 2 and on 3, wherever that is, it ends on one."""
    seen: list[int] = []
    for num_ranks in (4, 2, 3):
        attempt = training.start("--steps", "40", "--every", "0", "--sleep", "0.3", num_ranks=num_ranks)
        until(lambda ranks=attempt.ranks: bool(ranks[-1].steps), "a step")  # type: ignore[misc]  # bound at once
        attempt.ranks[-1].kill(signal.SIGTERM)
        assert attempt.ended() == [75] * num_ranks, attempt.ranks[0].errors
        seen += samples_of(attempt)
    seen += samples_of(training.run("--steps", "40"))
    assert len(seen) > 2 * 64
    assert Counter(seen) == Counter(sample_at(number, 64, seed=5) for number in range(len(seen)))


def samples_of(attempt: Attempt) -> list[int]:
    return [int(sample) for steps in attempt.steps for words in steps.values() for sample in words[5:]]


def test_a_checkpoint_of_the_first_format_goes_on_bit_for_bit(
    training: Training, eight_steps: Training, undisturbed: list[Steps]
) -> None:
    """Its manifest names no schema, and nothing that came later."""
    training.continue_from(eight_steps)
    path = training.checkpoints / "step-00000008/gen-1" / MANIFEST
    later = ("schema", "loss_spread", "key_id", "lineage", "has_sharded_extras", "has_own_tensors", "streams")
    content = rewritten(path.read_bytes(), **dict.fromkeys(later))
    files = [{name: file[name] for name in ("name", "rank", "size", "sha256")} for file in json.loads(content)["files"]]
    path.write_bytes(rewritten(content, files=files))
    assert not set(later) & set(json.loads(path.read_text()))
    assert training.run(num_ranks=2).steps == between(undisturbed, 9, 12)


def test_a_newer_runtimes_checkpoint_is_passed_over_by_name_and_the_one_before_it_used(
    training: Training, eight_steps: Training, undisturbed: list[Steps], tmp_path: Path
) -> None:
    training.continue_from(eight_steps)
    path = training.checkpoints / "step-00000008/gen-1" / MANIFEST
    path.write_bytes(rewritten(path.read_bytes(), schema=6))
    with Listening(tmp_path / "supervisor") as supervisor:
        again = training.run(num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path))
    assert again.steps == between(undisturbed, 5, 12)
    words = "is of schema 6, and this muster.train reads 1 to 5: a newer one saved it"
    assert [words in word["why"] for word in supervisor.received("checkpoint_unreadable")] == [True]
    assert supervisor.received("checkpoint_rejected") == [], "it is no worse for that"
    assert f"step-00000008/gen-1 is not used: {MANIFEST} {words}" in again.ranks[0].errors
    assert "step-00000008/gen-1" in training.generations(), "a program that knows it may use it still"


def test_a_step_that_is_saved_again_is_another_generation_and_the_first_stays_as_it_was(training: Training) -> None:
    whole = training.run("--steps", "12").steps[0]
    store = DiskStore(training.checkpoints)
    first = store.read_manifest(Generation(8, 1))
    training.run("--steps", "8", MUSTER_RESUME=json.dumps({"generation": "step-00000004/gen-1"}))
    assert {"step-00000008/gen-1", "step-00000008/gen-2"} < set(training.generations())
    assert store.verify(Generation(8, 1)) == first
    again = training.run(MUSTER_RESUME=json.dumps({"generation": "step-00000008/gen-1"})).steps[0]
    assert again == {step: whole[step] for step in range(9, 13)}


def flip(place: Path, name: str) -> None:
    content = bytearray((place / name).read_bytes())
    content[len(content) // 2] ^= 1
    (place / name).write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "one flipped bit": (lambda place: flip(place, "rank-00001.pt"), "rank-00001.pt differs from what was saved"),
    "truncated": (lambda place: os.truncate(place / "rank-00000.pt", 100), "rank-00000.pt holds 100 bytes instead of"),
    "a missing rank": (lambda place: (place / "rank-00001.pt").unlink(), "rank-00001.pt cannot be read: No such file"),
    "no manifest": (lambda place: (place / MANIFEST).unlink(), f"{MANIFEST} cannot be read: No such file"),
    "manifest flipped": (lambda place: flip(place, MANIFEST), f"{MANIFEST} "),
    "of another step": (
        lambda place: shutil.copytree(place.parents[1] / "step-00000004/gen-1", place, dirs_exist_ok=True),
        f"its {MANIFEST} is about step 4, fence 1",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_and_stated_and_the_generation_before_is_used(
    training: Training, eight_steps: Training, undisturbed: list[Steps], kind: str
) -> None:
    damage, why = DAMAGE[kind]
    training.continue_from(eight_steps)
    damage(training.checkpoints / "step-00000008/gen-1")
    with Listening(training.checkpoints.parent / "s") as supervisor:
        again = training.run(num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path))
    assert again.steps == between(undisturbed, 5, 12)
    (rejected,) = supervisor.received("checkpoint_rejected")
    assert rejected["generation"] == "step-00000008/gen-1"
    assert rejected["why"].startswith(why)
    assert why in again.ranks[0].errors
    assert len(supervisor.received("resumed", step=4, generation="step-00000004/gen-1")) == 2


@pytest.mark.parametrize("name", ["rank-00000.pt", "rank-00001.pt", MANIFEST])
def test_a_file_that_shows_late_is_waited_for(
    training: Training, eight_steps: Training, undisturbed: list[Steps], name: str
) -> None:
    """As on a file system that another host has just written to."""
    training.continue_from(eight_steps)
    path = training.checkpoints / "step-00000008/gen-1" / name
    aside = path.rename(path.with_name(".aside"))
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.start(num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        until(lambda: any("it may show late" in rank.errors for rank in attempt.ranks), "rank that misses it")
        aside.rename(path)
        assert attempt.ended() == [0, 0]
    assert attempt.steps == between(undisturbed, 9, 12)
    assert supervisor.received("checkpoint_rejected") == supervisor.received("checkpoint_unreadable") == []


def test_what_one_host_alone_cannot_read_is_skipped_and_not_condemned(
    training: Training, four_steps: Training, tmp_path: Path
) -> None:
    """Rank 1 sees a folder of its own: nothing says that the generation is damaged."""
    training.continue_from(four_steps)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(training.checkpoints, elsewhere)
    flip(elsewhere / "step-00000004/gen-1", "rank-00001.pt")
    with Listening(tmp_path / "s") as supervisor:
        attempt = training.start(
            "--every",
            "0",
            num_ranks=2,
            only={1: {"MUSTER_CHECKPOINT_DIR": str(elsewhere)}},
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
            MUSTER_LAST_SAVE_RETRY_S="0",
        )
        assert attempt.ended() == [EXIT_SAVE_FAILED] * 2, "it trained to its end, and its results are not saved"
    assert supervisor.received("checkpoint_rejected") == []
    (skipped,) = supervisor.received("checkpoint_unreadable")
    assert skipped["why"] == "rank 1: rank-00001.pt differs from what was saved"
    assert supervisor.received("checkpoint", status="failed"), "rank 1 writes where no other rank reads"


def test_the_control_plane_states_where_to_go_on(training: Training) -> None:
    whole = training.run("--every", "2").steps[0]
    resume = {"generation": "step-00000010/gen-1", "refuse": ["step-00000010/gen-1"]}
    again = training.run(MUSTER_RESUME=json.dumps(resume)).steps[0]
    assert again == {step: whole[step] for step in range(9, 13)}, "not the refused one, and no newer one"
    early = json.loads((training.checkpoints / "step-00000008/gen-1" / MANIFEST).read_text(encoding="utf-8"))
    resume = {"not_after_unix_ms": early["committed_at_unix_ms"]}
    again = training.run(MUSTER_RESUME=json.dumps(resume)).steps[0]
    assert again == {step: whole[step] for step in range(9, 13)}, "nothing that was committed later"


def test_what_was_committed_when_a_newer_attempt_trained_is_passed_over_and_reported(training: Training) -> None:
    """It is in the folder, above all that the newer one saved, and whole."""
    whole = training.run("--every", "2").steps[0]
    late = json.loads((training.checkpoints / "step-00000010/gen-1" / MANIFEST).read_text(encoding="utf-8"))
    resume = {
        "generation": "step-00000008/gen-1",
        "may_be_newer": True,
        "overtaken_since_unix_ms": {"1": late["committed_at_unix_ms"]},
    }
    with Listening(training.checkpoints.parent / "s") as supervisor:
        again = training.run(MUSTER_RESUME=json.dumps(resume), MUSTER_TRAIN_SOCKET=str(supervisor.path)).steps[0]
    assert again == {step: whole[step] for step in range(9, 13)}
    told = {str(word["generation"]) for word in supervisor.received("checkpoint_found")}
    assert told >= {"step-00000010/gen-1"}, "so that it has a row that says why"
    assert supervisor.received("checkpoint_rejected") == [], "nothing is wrong with its files"


def test_a_plain_script_resumes_and_counts_its_own_attempts(training: Training) -> None:
    whole = training.run("--steps", "8", MUSTER_FENCE="").steps[0]
    assert list(training.run(MUSTER_FENCE="").steps[0]) == [9, 10, 11, 12]
    assert training.generations() == ["step-00000004/gen-1", "step-00000008/gen-1", "step-00000012/gen-2"]
    alone = training.run("--steps", "8", MUSTER_FENCE="", MUSTER_CHECKPOINT_DIR="").steps[0]
    assert alone == whole, "and without a folder it begins again, the same"


def test_where_nothing_can_be_used_it_begins_again_and_reports_it(training: Training) -> None:
    whole = training.run("--steps", "8").steps[0]
    for name in ("step-00000004/gen-1", "step-00000008/gen-1"):
        flip(training.checkpoints / name, "rank-00000.pt")
    again = training.run("--steps", "8")
    assert again.steps[0] == whole
    assert "no generation could be used: training begins at step 0" in again.ranks[0].errors
    assert "step-00000008/gen-1" in training.generations(), "a person may want to look"


def test_another_programs_checkpoint_is_an_error_and_no_reason_to_begin_again(training: Training) -> None:
    training.run("--steps", "4")
    attempt = training.start("--width", "8")
    assert attempt.ended() == [1]
    assert "CoverageError: the model differs from the one that was saved" in attempt.ranks[0].errors


def test_a_state_that_could_never_be_loaded_fails_at_the_first_save(training: Training) -> None:
    attempt = training.start("--keep-object", num_ranks=2)
    assert attempt.ended() == [1, 1]
    assert "CoverageError: a state_dict holds more than tensors and plain values" in attempt.ranks[1].errors


@pytest.mark.parametrize("number", ["1", "0"])
def test_an_overtaken_attempt_writes_nothing_and_states_never_again(training: Training, number: str) -> None:
    training.checkpoints.mkdir(parents=True)
    (training.checkpoints / "FENCE").write_text("99", encoding="ascii")
    attempt = training.start(num_ranks=2, MUSTER_FENCE=number)
    assert attempt.ended() == [93, 93]
    assert attempt.steps == [{}, {}]
    assert training.generations() == []


def test_one_overtaken_while_it_runs_commits_nothing_more(training: Training) -> None:
    old = training.start("--every", "100", "--steps", "200", "--sleep", "0.05", num_ranks=2)
    until(lambda: bool(old.steps[0]), "first step")
    for rank in old.ranks:
        rank.kill(signal.SIGSTOP)
    training.run("--steps", "4", num_ranks=2)
    for rank in old.ranks:
        rank.kill(signal.SIGCONT)
    assert old.ended() == [93, 93]
    assert training.generations() == ["step-00000004/gen-2"]


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_a_full_disk_on_one_rank_stops_none_and_is_tried_again(
    training: Training, undisturbed: list[Steps], fault: str
) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.start(
            "--synchronous",
            num_ranks=2,
            only={1: {"MUSTER_TRAIN_FAILPOINT": f"save.write={fault}@2"}},
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
        )
        assert attempt.ended() == [0, 0]
    assert attempt.steps == undisturbed
    (failed,) = supervisor.received("checkpoint", status="failed")
    assert failed["generation"] == "step-00000008/gen-1"
    assert failed["why"].startswith("rank 1: [Errno")
    assert training.generations() == ["step-00000004/gen-1", "step-00000009/gen-1", "step-00000012/gen-1"]
