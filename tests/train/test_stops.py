"""All ranks stop at one step, whichever got it, with a checkpoint where the notice allows; nothing holds up a step."""

import signal
import time
from pathlib import Path

import pytest

from .marks import TRAINS
from .train_case import Listening, Training, free_port, is_listening, until

pytestmark = TRAINS
LONG = ("--steps", "20000", "--every", "0", "--sleep", "0.01")
Steps = dict[int, list[str]]


def in_ms(seconds: float) -> int:
    return time.time_ns() // 1_000_000 + round(seconds * 1000)


@pytest.mark.parametrize("reported", [0, 1])
def test_a_signal_to_one_rank_stops_all_at_one_step_with_a_checkpoint(
    training: Training, undisturbed: list[Steps], reported: int
) -> None:
    attempt = training.start("--every", "0", "--sleep", "1.0", num_ranks=2)
    until(lambda: 2 in attempt.ranks[reported].steps, "second step")
    attempt.ranks[reported].kill(signal.SIGTERM)
    assert attempt.ended() == [75, 75]
    stopped_at = [max(steps) for steps in attempt.steps]
    assert stopped_at[0] == stopped_at[1] < 12
    assert training.generations() == [f"step-{stopped_at[0]:08d}/gen-1"]
    after = training.run("--every", "0", num_ranks=2).steps
    whole = [{**before, **rank} for before, rank in zip(attempt.steps, after, strict=True)]
    assert whole == undisturbed
    assert min(after[0]) == stopped_at[0] + 1


@pytest.mark.parametrize("reported", [0, 1])
@pytest.mark.parametrize(
    ("where", "word", "step"), [("--linger-at", "lingering", 0), ("--evaluate-at", "evaluating", 3)]
)
def test_a_signal_in_the_first_batch_or_an_evaluation_stops_all_behind_that_step(
    training: Training, undisturbed: list[Steps], where: str, word: str, step: int, reported: int
) -> None:
    """The evaluation is of all ranks together: none may leave it early."""
    meanwhile = training.checkpoints.parent / "meanwhile"
    attempt = training.start("--every", "0", where, str(step), "--meanwhile", str(meanwhile), num_ranks=2)
    until(lambda: word in attempt.ranks[reported].output, word)
    attempt.ranks[reported].kill(signal.SIGTERM)
    meanwhile.touch()
    assert attempt.ended() == [75, 75], attempt.ranks[reported].errors
    assert training.generations() == [f"step-{step + 1:08d}/gen-1"]
    after = training.run("--every", "0", num_ranks=2).steps
    assert [{**before, **rank} for before, rank in zip(attempt.steps, after, strict=True)] == undisturbed


@pytest.mark.parametrize(("notice_s", "code", "word"), [(0.0, 76, "without"), (600.0, 75, "with_checkpoint")])
def test_a_notice_too_short_for_a_save_ends_without_one(
    training: Training, notice_s: float, code: int, word: str
) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.start(*LONG, num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        supervisor.wait_for("step")
        supervisor.report({"type": "stop", "reason": "reclaim", "deadline_unix_ms": in_ms(notice_s)})
        assert attempt.ended() == [code, code]
    assert bool(training.generations()) == (notice_s > 0)
    outcomes = supervisor.received("outcome", exit=f"stopped_{word}")
    assert sorted(outcome["message"] for outcome in outcomes) == ["another rank was asked to stop", "reclaim"]


@pytest.mark.parametrize(("notice", "code"), [("0", 76), ("600", 75), ("", 75)])
def test_outside_muster_the_signals_notice_is_a_variable(training: Training, notice: str, code: int) -> None:
    attempt = training.start(*LONG, MUSTER_STOP_NOTICE_S=notice)
    until(lambda: bool(attempt.ranks[0].steps), "first step")
    attempt.ranks[0].kill(signal.SIGTERM)
    assert attempt.ended() == [code]


def test_a_stop_before_the_first_step_costs_nothing(training: Training) -> None:
    """The supervisor notifies each rank that connects later, too."""
    for code, arguments in ((76, LONG), (0, ("--steps", "4")), (75, LONG)):
        with Listening(training.checkpoints.parent / f"s{len(training.generations())}{code}") as supervisor:
            told = supervisor.path.with_suffix(".told")
            attempt = training.start(*arguments, "--after", str(told), MUSTER_TRAIN_SOCKET=str(supervisor.path))
            if code != 0:
                supervisor.wait_for_connection()
                supervisor.report({"type": "stop", "reason": "cancel", "deadline_unix_ms": in_ms(600)})
            told.touch()
            assert attempt.ended() == [code]
        assert supervisor.reported[0]["type"] == "hello"
        assert supervisor.reported[-1]["type"] == "outcome"
    assert training.generations() == ["step-00000004/gen-2"]


@pytest.mark.parametrize("by", ["signal", "socket"])
def test_a_stop_while_the_other_ranks_have_not_come_is_received_inside_the_meeting(training: Training, by: str) -> None:
    port = free_port()
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.start(
            *LONG,
            WORLD_SIZE="2",
            MASTER_PORT=str(port),
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
            MUSTER_STOP_NOTICE_S="0.5",
        )
        until(lambda: is_listening(port), "meeting of the ranks")
        if by == "signal":
            attempt.ranks[0].kill(signal.SIGTERM)
        else:
            supervisor.report({"type": "stop", "reason": "reclaim", "deadline_unix_ms": in_ms(0.5)})
        assert attempt.ended() == [76], attempt.ranks[0].errors
    (outcome,) = supervisor.received("outcome")
    assert (outcome["exit"], outcome["step"]) == ("stopped_without", 0)
    assert outcome["message"] == ("SIGTERM" if by == "signal" else "reclaim")


def test_a_checkpoint_is_made_when_requested(training: Training) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.start(*LONG, num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        supervisor.wait_for("step")
        supervisor.report({"type": "checkpoint_now"})
        supervisor.wait_for("checkpoint", status="verified")
        attempt.ranks[1].kill(signal.SIGTERM)
        assert attempt.ended() == [75, 75]
    asked, last = (said["generation"] for said in supervisor.received("checkpoint", status="verified"))
    assert training.generations() == [asked, last]


def test_the_history_of_a_training_is_reported(training: Training) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        training.run(MUSTER_TRAIN_SOCKET=str(supervisor.path))
    kinds = [message["type"] for message in supervisor.reported]
    assert kinds[:3] == ["hello", "resumed", "step"]
    assert kinds[-1] == "outcome"
    steps = supervisor.received("step")
    assert [(said["step"], said["samples"]) for said in steps] == [(step, 4 * step) for step in range(1, 13)]
    assert all(said["loss"] > 0 and said["step_s"] >= 0 for said in steps)
    committed = supervisor.received("checkpoint", status="committed")
    assert [said["step"] for said in committed] == [4, 8, 12]
    for said in committed:
        place = training.checkpoints / said["generation"]
        assert said["bytes"] == (place / "rank-00000.pt").stat().st_size
        assert len(said["manifest_sha256"]) == 64
        assert abs(said["at_unix_ms"] - time.time() * 1000) < 600_000
    (outcome,) = supervisor.received("outcome")
    assert outcome == {"type": "outcome", "exit": "done", "cause": None, "step": 12, "message": "", "dropped_lines": 0}


def test_a_program_that_raises_reports_it_before_it_is_gone(training: Training) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.start("--crash-at", "5", MUSTER_TRAIN_SOCKET=str(supervisor.path))
        assert attempt.ended() == [1]
    (outcome,) = supervisor.received("outcome")
    assert (outcome["exit"], outcome["step"]) == ("failed", 5)
    assert outcome["message"] == "ValueError: the program's own fault"
    assert "Traceback" in attempt.ranks[0].errors


def test_a_supervisor_that_never_reads_holds_up_nothing(training: Training, tmp_path: Path) -> None:
    """More than the system's buffer holds; ``test_wire`` fills our own too."""
    with Listening(tmp_path / "s", is_deaf=True) as supervisor:
        attempt = training.run("--steps", "1200", "--every", "0", MUSTER_TRAIN_SOCKET=str(supervisor.path))
    assert len(attempt.steps[0]) == 1200
