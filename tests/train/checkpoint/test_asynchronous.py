"""Checkpoints that are written while training continues: of the step they were asked for, whatever happens then."""

import signal
import time
from pathlib import Path

from tests.train.marks import TRAINS
from tests.train.train_case import Listening, Training, until

pytestmark = TRAINS
Steps = dict[int, list[str]]
FAILPOINT = "MUSTER_TRAIN_FAILPOINT"
SLOW = "save.write~2"
SLOWER = "save.write~0.5"
"""Slower than a step, and done well within the patience of a program that raises."""


def test_training_goes_on_meanwhile_and_what_is_saved_is_the_step_that_was_copied(
    training: Training, undisturbed: list[Steps]
) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        first = training.start(
            "--sleep",
            "0.2",
            "--every",
            "4",
            num_ranks=2,
            only={1: {FAILPOINT: SLOW}, 0: {FAILPOINT: "save.after_commit"}},
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
        )
        assert -9 in first.ended()
    assert all(max(steps) > 4 for steps in first.steps), "no step waited for the slow disk"
    assert training.generations() == ["step-00000004/gen-1"]
    again = training.run(num_ranks=2).steps
    assert again == [{step: rank[step] for step in range(5, 13)} for rank in undisturbed], "no value of a later step"


def test_the_next_save_waits_for_the_one_under_way(training: Training) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        training.run("--every", "5", num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path), MUSTER_TRAIN_FAILPOINT=SLOW)
    committed = supervisor.received("checkpoint", status="committed")
    assert [said["step"] for said in committed] == [5, 10, 12]
    assert all(said["seconds"] >= 2 for said in committed)


def test_a_full_disk_is_reported_and_tried_again(training: Training, undisturbed: list[Steps]) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.start(
            "--sleep",
            "0.2",
            num_ranks=2,
            only={1: {FAILPOINT: "save.write=ENOSPC@1"}},
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
            MUSTER_TRAIN_FAULTS="slow@4-5/0=5",  # time for a busy disk to fail before the next one is due
        )
        assert attempt.ended() == [0, 0]
    assert attempt.steps == undisturbed
    (failed,) = supervisor.received("checkpoint", status="failed")
    assert failed["step"] == 4
    saved = [said["step"] for said in supervisor.received("checkpoint", status="committed")]
    assert 4 < saved[0] < 8, "before the next one was due"


def test_a_stop_waits_for_the_save_under_way_and_saves_its_own_step(training: Training) -> None:
    attempt = training.start(
        "--sleep", "0.05", "--steps", "2000", "--every", "10", num_ranks=2, MUSTER_TRAIN_FAILPOINT=SLOW
    )
    until(lambda: 12 in attempt.ranks[0].steps, "step after the first copy")
    attempt.ranks[0].kill(signal.SIGTERM)
    assert attempt.ended() == [75, 75], attempt.ranks[0].errors
    stopped_at = max(attempt.ranks[0].steps)
    assert f"step-{stopped_at:08d}/gen-1" in training.generations()
    assert not any("partial" in name for name in training.generations())


def test_a_save_that_never_ends_does_not_keep_a_rank_past_its_deadline(training: Training) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.start(
            "--sleep",
            "0.05",
            "--steps",
            "2000",
            "--every",
            "10",
            num_ranks=2,
            only={1: {FAILPOINT: "save.write~600"}},
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
        )
        until(lambda: 12 in attempt.ranks[0].steps, "step after the first copy")
        deadline_s = time.time() + 4
        supervisor.report({"type": "stop", "reason": "reclaim", "deadline_unix_ms": round(deadline_s * 1000)})
        assert attempt.ended() == [76, 76]
    assert "a save is still in progress" in str(supervisor.received("outcome", exit="stopped_without"))
    whole = [name for name in training.generations() if "partial" not in name]
    assert whole == []


def test_what_a_program_that_raises_has_begun_to_save_is_kept(training: Training) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.start(
            "--crash-at", "5", MUSTER_TRAIN_SOCKET=str(supervisor.path), MUSTER_TRAIN_FAILPOINT=SLOWER
        )
        assert attempt.ended() == [1]
    assert [said["type"] for said in supervisor.reported if said["type"] in {"checkpoint", "outcome"}][-1] == "outcome"
    assert [said["step"] for said in supervisor.received("checkpoint", status="committed")] == [4]
    assert training.generations() == ["step-00000004/gen-1"]


def test_a_program_that_raises_does_not_wait_for_a_disk_that_hangs(training: Training) -> None:
    attempt = training.start("--crash-at", "5", MUSTER_TRAIN_FAILPOINT="save.write~600")
    assert attempt.ended() == [1], "its own code, and no signal's"
    assert "ValueError: the program's own fault" in attempt.ranks[0].errors


ROOMY = """
import sys
import torch
from muster import train

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
run = train.start(model, optimizer, checkpoint_every=4, asynchronous=len(sys.argv) == 1)
for step in run.steps(total=10):
    torch.autograd.backward(run.model(torch.ones(2, 4)).sum())
    optimizer.step()
    staging = run._state.checkpoints._parts._staging
    print("step", step, staging._making is not None, bool(staging._kept), flush=True)
run.finish()
"""


def test_room_for_the_first_copy_is_made_once_between_the_first_step_and_that_copy(
    training: Training, tmp_path: Path
) -> None:
    """Its steps take no time, so that the first checkpoint is near from the first one on."""
    program = tmp_path / "program.py"
    program.write_text(ROOMY, encoding="utf-8")
    found = training.run(num_ranks=2, program=program).steps
    making, kept = ["True", "False"], ["False", "True"]
    assert (
        found == [{0: ["False", "False"], **dict.fromkeys((1, 2, 3), making), **dict.fromkeys(range(4, 10), kept)}] * 2
    )
    alone = Training(training._zygote, tmp_path / "synchronous")
    (found_there,) = alone.run("synchronous", program=program).steps
    assert set(map(tuple, found_there.values())) == {("False", "False")}, "none is needed where nothing is copied"
