"""What a program most likely did not mean is reported once, and what it meant is not."""

import copy
import importlib.util

import pytest

from tests.train.marks import TRAINS
from tests.train.train_case import HERE, Listening, Training

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import torch

    from muster.train.report import advice

ALIKE = HERE / "alike_program.py"


def warned(supervisor: Listening) -> dict[str, str]:
    said = supervisor.received("warning")
    assert len(said) == len({each["code"] for each in said}), "each once, by one rank"
    return {each["code"]: each["message"] for each in said}


def test_ranks_with_the_same_samples_and_their_own_batch_statistics_are_reported(training: Training) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.run(num_ranks=2, program=ALIKE, MUSTER_TRAIN_SOCKET=str(supervisor.path))
    found = warned(supervisor)
    assert set(found) == {"same_samples", "batch_norm"}
    assert found["same_samples"].startswith("2 of 2 ranks began with the very same samples")
    assert "BatchNorm (1)" in found["batch_norm"]
    assert "the very same samples" in attempt.ranks[0].errors
    assert "muster.train:" not in attempt.ranks[1].errors


def test_a_program_that_reads_its_own_share_is_reported_nothing_of_samples(training: Training) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        training.run("--steps", "4", num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path))
    assert set(warned(supervisor)) == {"batch_norm"}
    with Listening(training.checkpoints.parent / "t") as supervisor:
        training.run("--steps", "8", num_ranks=1, MUSTER_TRAIN_SOCKET=str(supervisor.path))
    found = warned(supervisor)
    assert set(found) == {"learning_rate"}, "of one rank nothing else can be reported"
    assert "a step takes 4 samples, 0.5 times as many as those before the checkpoint (8)" in found["learning_rate"]
    assert "the learning rate is still 0.009" in found["learning_rate"]


@pytest.mark.parametrize(
    ("tuned", "reported"),
    [
        (("4", "0.01"), "the batch is 8 samples, 2 times the 4 that a learning rate of 0.01 was tuned for"),
        (("4", "0.005"), ""),
        (("8", "0.01"), ""),
    ],
    ids=["not scaled", "scaled with the batch", "as it was tuned"],
)
def test_a_rate_that_was_not_scaled_with_the_batch_is_reported_at_the_first_start(
    training: Training, tuned: tuple[str, str], reported: str
) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        attempt = training.run("--steps", "2", "--tuned", *tuned, num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path))
    words = warned(supervisor).get("learning_rate", "")
    assert reported in words
    assert bool(reported) == bool(words) == ("the batch is 8" in attempt.ranks[0].errors)


def test_one_rank_is_reported_too_and_after_a_resume_the_first_rate_counts(training: Training) -> None:
    for steps in ("4", "8"):
        with Listening(training.checkpoints.parent / f"s{steps}") as supervisor:
            training.run("--steps", steps, "--tuned", "16", "0.01", MUSTER_TRAIN_SOCKET=str(supervisor.path))
        words = warned(supervisor)["learning_rate"]
        assert "the batch is 4 samples, 0.25 times the 16" in words
        assert "and the rate 0.01: scaled with the batch it would be 0.0025 (SGD), with its square root 0.005" in words


@pytest.mark.parametrize(
    ("places", "reported"),
    [
        ([(0, "0"), (0, "0"), (1, "1"), (1, "1")], ""),
        ([(0, "0"), (0, "1"), (1, "0"), (1, "1")], "each layer waits for the network"),
        ([(0, "0"), (1, "1")], ""),
    ],
)
def test_ranks_that_share_one_samples_work_belong_on_one_host(places: list[tuple[int, str]], reported: str) -> None:
    words = advice._of_nodes(places)
    assert reported in words
    assert bool(reported) == bool(words)


@pytest.mark.parametrize(
    ("reported", "host"),
    [
        ({"MUSTER_NODE_RANK": "3", "GROUP_RANK": "0", "NODE_RANK": "1"}, "3"),
        ({"GROUP_RANK": "2", "NODE_RANK": "1"}, "2"),
        ({"MUSTER_NODE_RANK": "", "NODE_RANK": "1"}, "1"),
        ({}, "0"),
    ],
)
def test_a_ranks_host_is_known_under_any_launcher(
    monkeypatch: pytest.MonkeyPatch, reported: dict[str, str], host: str
) -> None:
    for name in ("MUSTER_NODE_RANK", "GROUP_RANK", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in reported.items():
        monkeypatch.setenv(name, value)
    assert advice._own_host() == host


def test_samples_that_none_could_compare_are_not_stated_of() -> None:
    assert advice._of_samples([(0, "a"), (1, "")]) == ""
    assert advice._of_samples([(0, "a"), (0, "a"), (1, "b")]) == "", "ranks of one group read the same"
    assert advice._of_samples([(0, "a"), (1, "a"), (2, "b")]).startswith("2 of 3")


def test_ranks_that_the_checkpoint_does_not_know_are_named() -> None:
    words = "resumed on 4 ranks from a checkpoint of 2: ranks 2 to 3 have no random numbers there, new ones are drawn"
    assert advice._of_random_numbers(2, 4) == words
    assert "rank 2 has no" in advice._of_random_numbers(2, 3)
    assert advice._of_random_numbers(0, 4) == advice._of_random_numbers(4, 2) == advice._of_random_numbers(2, 2) == ""


def test_what_has_no_values_to_compare_and_what_only_checks_is_passed_over() -> None:
    module = torch.nn.Linear(2, 2)
    first = advice.FirstBatch()
    jagged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    for strange in (torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta"), jagged):
        first.note(module, (strange,), {})

    def mapped(row: torch.Tensor) -> torch.Tensor:
        first.note(module, (row,), {})
        return row

    torch.func.vmap(mapped)(torch.ones(2, 2))
    with torch.no_grad():
        first.note(module, (torch.ones(2),), {})
    module.eval()
    first.note(module, (torch.ones(2),), {})
    assert first.digest == ""
    module.train()
    first.note(module, (torch.ones(2),), {"mask": torch.zeros(2)})
    one, other = first.digest, advice.FirstBatch()
    other.note(module, (torch.ones(2),), {"mask": torch.ones(2)})
    assert one
    assert one != other.digest, "all that it is called with counts"
    assert copy.deepcopy(first).digest == one


def test_only_batch_norm_that_counts_is_named() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4, track_running_stats=False), torch.nn.SyncBatchNorm(4))
    assert advice._of_batch_norm(model) == ""
    many = torch.nn.Sequential(*(torch.nn.BatchNorm1d(4) for _ in range(5)))
    assert "BatchNorm (0, 1, 2 and 2 more)" in advice._of_batch_norm(many)
