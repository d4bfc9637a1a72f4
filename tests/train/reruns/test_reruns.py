"""Re-runs of real ranks: a transient fault, one that stays with its GPU, and one of the program are distinguished."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.wire.operations import SuspectOperation
from muster.wire.training import AnyRankMessage, Rerun
from tests.train.marks import TRAINS
from tests.train.train_case import HERE, Attempt, Listening, Training, Zygote
from watch.reruns.judge import RerunCause, RerunOutcome, judge_elsewhere
from watch.reruns.results import result_of

pytestmark = TRAINS
WATCHED = HERE / "watched_program.py"
OFFERED = "{}"
Steps = list[dict[int, list[str]]]


@pytest.fixture(scope="session")
def two_undisturbed(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    return Training(zygote, tmp_path_factory.mktemp("rerun")).run(num_ranks=2, program=WATCHED).steps


class Reruns:
    """Runs of two ranks, with what they report of re-runs."""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training, self.folder = training, folder
        self.attempts: list[Attempt] = []

    def run(self, *words: str, codes: list[int], rerun: str = OFFERED, num_ranks: int = 2) -> list[Rerun]:
        with Listening(self.folder / f"supervisor-{len(self.attempts)}") as supervisor:
            attempt = self.training.start(
                *words,
                num_ranks=num_ranks,
                program=WATCHED,
                MUSTER_TRAIN_SOCKET=str(supervisor.path),
                MUSTER_RERUN=rerun,
            )
            assert attempt.ended() == codes, attempt.ranks[0].errors
        self.attempts.append(attempt)
        self.outcome = supervisor.received("outcome")[0]
        read: list[Any] = [msgspec.convert(each, AnyRankMessage) for each in supervisor.received("rerun")]
        return read

    @property
    def errors(self) -> str:
        return self.attempts[-1].ranks[0].errors


@pytest.fixture
def reruns(training: Training, tmp_path: Path) -> Reruns:
    return Reruns(training, tmp_path)


@pytest.mark.parametrize(("what", "at"), [("bit", 9), ("bit", 11), ("moment", 10), ("dropped", 10)])
@pytest.mark.parametrize("rank", [0, 1])
def test_two_replicas_are_distinguished_and_the_run_ends_as_the_undisturbed_one(
    reruns: Reruns, two_undisturbed: Steps, what: str, at: int, rank: int
) -> None:
    (found,) = reruns.run(what, "--at", str(at), "--rank", str(rank), codes=[0, 0])
    assert (found.place, found.found, found.ranks, found.is_again) == ("in_place", "transient", (rank,), False)
    assert (found.from_step, found.step, found.first_bad, found.fault) == (8, 12, 10, "replica_fault")
    assert f"re-run of steps 9 to 12: the fault did not come again, and rank {rank} computed" in reruns.errors
    assert reruns.attempts[0].steps == two_undisturbed, "bit for bit"


@pytest.mark.parametrize(
    ("words", "found", "ranks"),
    [(("--at", "13", "--every", "8"), "transient", (1,)), ((), "undecided", ())],
    ids=["four steps before it", "two steps before it"],
)
def test_a_value_that_is_no_number_once_names_a_rank_only_if_enough_steps_before_it_were_repeated(
    reruns: Reruns, two_undisturbed: Steps, words: tuple[str, ...], found: str, ranks: tuple[int, ...]
) -> None:
    (report,) = reruns.run("weight", "--on-fault", "rollback", *words, codes=[0, 0])
    assert (report.found, report.ranks, report.fault) == (found, ranks, "value_fault")
    assert reruns.attempts[0].steps == two_undisturbed, "bit for bit"


def test_a_fault_that_stays_with_its_gpu_is_found_on_other_ones(reruns: Reruns) -> None:
    (first,) = reruns.run("bit", "--again", codes=[16, 16])
    assert (first.found, first.is_again, first.ranks) == ("repeated", True, (0, 1)), "undecided among two"
    assert reruns.outcome["cause"] == "corruption"
    assert "its steps were run again and gave the same fault" in reruns.errors
    operation = msgspec.convert(first.operation, SuspectOperation)
    assert (operation.kind, operation.shape, operation.dtype) == ("matmul", (8, 4), "float32")
    assert 0 < operation.magnitude < 1
    (second,) = reruns.run(codes=[0, 0], rerun=order_of(first))
    assert (second.place, second.found, second.is_again) == ("elsewhere", "", False)
    outcome = judged(first, second)
    assert (outcome.cause, outcome.ranks) == (RerunCause.PERSISTENT, (1,))


def test_a_fault_that_a_program_makes_on_each_gpu_is_its_own(reruns: Reruns) -> None:
    """A sample is no number, each time that it is drawn: in step 10."""
    usual = reruns.run(codes=[0, 0])
    assert usual == []
    sample = reruns.attempts[0].steps[1][10][-1]
    reruns.training.checkpoints.rename(reruns.training.checkpoints.with_name("usual"))
    words = ("sample", "--at", sample, "--on-fault", "rollback")
    (first,) = reruns.run(*words, codes=[16, 16])
    assert (first.found, first.is_again, first.fault, first.ranks) == ("repeated", True, "value_fault", (1,))
    (second,) = reruns.run(*words, codes=[17, 17], rerun=order_of(first))
    assert (second.place, second.is_again, second.step) == ("elsewhere", True, 10)
    assert judged(first, second).cause is RerunCause.PROGRAM
    assert reruns.outcome["cause"] == "diverged"


@pytest.mark.parametrize("what", ["activation", "bit"])
def test_without_other_gpus_a_program_that_repeats_its_fault_ends_as_diverged(training: Training, what: str) -> None:
    attempt = training.start(what, "--again", "--on-fault", "rollback", num_ranks=2, program=WATCHED)
    assert attempt.ended() == [17, 17]
    last = attempt.ranks[0].errors.splitlines()[-1]
    assert "not rolled back: its steps were run again and gave the same fault" in last
    assert attempt.ranks[0].errors.count("rollback 1 of 3") == 1


def order_of(first: Rerun) -> str:
    ranks = [each[0] for each in first.results]
    order = {"step": first.step, "first_bad": first.first_bad, "ranks": ranks, "num_ranks": first.num_ranks}
    return msgspec.json.encode(order).decode()


def judged(first: Rerun, second: Rerun) -> RerunOutcome:
    """Judge as the control plane does, which knows the GPUs."""
    runs = [
        result_of(
            each.results,
            {rank: f"{place}{rank}" for rank in range(each.num_ranks)},
            end_step=each.end_step,
            is_again=each.is_again,
            from_step=each.from_step,
            num_ranks=each.num_ranks,
        )
        for place, each in (("A", first), ("B", second))
    ]
    return judge_elsewhere(*runs, first_bad=first.first_bad, suspects=first.ranks)
