"""Samples that one attempt skipped stay skipped in the next, whatever checkpoint it continues from."""

import json
from pathlib import Path

import pytest

from tests.train.marks import TRAINS
from tests.train.train_case import Listening, Training, Zygote

from .conftest import WATCHED, Steps

pytestmark = TRAINS

KILL = "kill@12/1"
SKIP = ("sample", "--every", "8", "--on-fault", "skip")


def faulty_sample(steps: Steps, rank: int = 2, step: int = 10) -> str:
    return steps[rank][step][-1]


def refusing_later_than(step: int, training: Training) -> str:
    return json.dumps({"refuse": [each for each in training.generations() if f"{step:08d}" not in each]})


@pytest.mark.parametrize("kind", [(), ("--stream",)], ids=["indices", "stream"])
def test_a_killed_attempt_that_skipped_and_its_next_equal_an_undisturbed_one_bit_for_bit(
    training: Training, zygote: Zygote, kind: tuple[str, ...], tmp_path: Path
) -> None:
    """The rollback went to step 8, and the kill came before any later checkpoint."""
    usual = Training(zygote, tmp_path / "usual").run(*kind, num_ranks=3, program=WATCHED).steps
    words = (*SKIP, "--at", faulty_sample(usual), *kind)
    skipped = Training(zygote, tmp_path / "skipped").run(*words, num_ranks=3, program=WATCHED).steps
    assert skipped != usual
    killed = training.start(*words, num_ranks=3, program=WATCHED, MUSTER_TRAIN_FAULTS=KILL)
    killed.ended()
    assert [name[:13] for name in training.generations()] == ["step-00000008"]
    with Listening(tmp_path / "supervisor") as supervisor:
        again = training.start(*words, num_ranks=3, program=WATCHED, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        assert again.ended() == [0, 0, 0], again.ranks[0].errors
    assert supervisor.received("rolled_back") == [], "the samples are not met again"
    assert "samples in 1 ranges stay skipped" in again.ranks[0].errors
    assert [{**first, **then} for first, then in zip(killed.steps, again.steps, strict=True)] == skipped


def test_a_checkpoint_from_before_the_skip_leads_to_it_too_and_a_changed_record_is_reported(
    training: Training, three_undisturbed: Steps
) -> None:
    words = (*SKIP, "--at", faulty_sample(three_undisturbed))
    first = training.run(*words, num_ranks=3, program=WATCHED)
    again = training.start(*words, num_ranks=3, program=WATCHED, MUSTER_RESUME=refusing_later_than(8, training))
    assert again.ended() == [0, 0, 0], again.ranks[0].errors
    assert again.steps == [{step: rank[step] for step in range(9, 17)} for rank in first.steps]
    (record,) = training.checkpoints.glob("SKIPPED-*")
    record.write_bytes(record.read_bytes().replace(b'"first": 108', b'"first": 109'))
    last = training.start(*words, num_ranks=3, program=WATCHED, MUSTER_RESUME=refusing_later_than(8, training))
    assert last.ended() == [0, 0, 0]
    assert "samples that an earlier attempt skipped are trained on: a record" in last.ranks[0].errors
    assert "rollback 1 of 3: from step 10 to step-00000008" in last.ranks[0].errors, "it is found again"
