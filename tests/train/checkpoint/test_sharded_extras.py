"""An extra that is sharded as the model is: saved piece by piece, each once, and restored into any layout."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from muster.train.checkpoint.extra_pieces import PIECES
from muster.train.checkpoint.manifest import MANIFEST
from muster.train.checkpoint.storage.disk_store import DiskStore
from tests.train.checkpoint.test_extras import parts
from tests.train.marks import TRAINS
from tests.train.train_case import Attempt, Training

pytestmark = TRAINS
PROGRAM = Path(__file__).parents[1] / "sharded_extras_program.py"
NUM_VALUES = 5 * 7 + 7 + 7 + 1


def reported(attempt: Attempt) -> list[list[dict[str, Any]]]:
    """Of each rank what it had before its first step, and behind its last."""
    return [[json.loads(line) for line in rank.output.splitlines()] for rank in attempt.ranks]


@pytest.fixture(scope="module")
def saved(zygote: object, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """By layout: a checkpoint of two ranks, and what the average was as it was made."""
    found = {}
    for layout in ("fsdp", "ddp"):
        training = Training(zygote, tmp_path_factory.mktemp(layout))  # type: ignore[arg-type]  # the session's
        attempt = training.run("--layout", layout, num_ranks=2, program=PROGRAM)
        first, second = reported(attempt)
        assert first[-1] == second[-1]
        assert (first[-1]["step"], first[-1]["updates"], len(first[-1]["whole"])) == (8, 8, NUM_VALUES)
        found[layout] = (training.checkpoints, first[-1])
    return found


@pytest.mark.parametrize(
    ("before", "after", "num_ranks"),
    [
        ("fsdp", "fsdp", 2),
        ("fsdp", "fsdp", 1),
        ("fsdp", "fsdp", 3),
        ("fsdp", "hsdp", 4),
        ("fsdp", "ddp", 2),
        ("fsdp", "ddp", 1),
        ("ddp", "fsdp", 2),
        ("ddp", "fsdp", 4),
    ],
)
def test_it_comes_back_as_it_was_on_any_number_of_ranks_and_in_any_layout(
    training: Training,
    saved: dict[str, tuple[Path, dict[str, Any]]],
    before: str,
    after: str,
    num_ranks: int,
) -> None:
    folder, whole = saved[before]
    shutil.copytree(folder, training.checkpoints)
    attempt = training.run("--layout", after, "--steps", "9", num_ranks=num_ranks, program=PROGRAM)
    assert [rank[0] for rank in reported(attempt)] == [whole] * num_ranks
    assert all(rank[-1]["updates"] == 9 for rank in reported(attempt)), "and trains on"


@pytest.mark.parametrize("mode", [(), ("--synchronous",)])
def test_each_value_is_written_once_and_an_older_runtime_is_ordered_to_leave_it(
    training: Training, mode: tuple[str, ...]
) -> None:
    training.run("--layout", "hsdp", *mode, num_ranks=4, program=PROGRAM)
    for generation in ("step-00000004/gen-1", "step-00000008/gen-1"):
        found = [part[PIECES]["extra average"] for part in parts(training, generation, 4)]
        assert [bool(pieces) for pieces in found] == [True, True, False, False], "the second copy saves nothing"
        values = [piece["values"] for pieces in found for piece in pieces.values()]
        assert sum(each.numel() for each in values) == NUM_VALUES
        assert json.loads((training.checkpoints / generation / MANIFEST).read_text())["schema"] == 3


def test_a_checkpoint_without_one_stays_of_the_first_schema(saved: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    store = DiskStore(saved["ddp"][0])
    assert [store.read_manifest(each).schema for each in store.list_generations()] == [1, 1]


def test_what_is_next_to_it_and_each_ranks_own_comes_back_by_rank(training: Training) -> None:
    training.run("--own", num_ranks=2, program=PROGRAM)
    again = training.run("--own", "--steps", "9", num_ranks=2, program=PROGRAM)
    assert [rank[0]["own"] for rank in reported(again)] == [1, 2]
    assert reported(again)[0][0]["whole"] == reported(again)[1][0]["whole"]
    refused = training.start("--steps", "12", num_ranks=1, program=PROGRAM)
    assert set(refused.ended()) == {1}
    assert "extra average differed from rank to rank when 2 ranks saved it" in refused.ranks[0].errors
