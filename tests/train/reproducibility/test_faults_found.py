"""A check names each fault of a resume by its cause and by what differs first."""

from pathlib import Path

import pytest

from tests.scaled import IS_SOAK
from tests.train.marks import TRAINS
from tests.train.train_case import Training
from watch.reproducibility.causes import Cause

from .check_case import SAVE_AT, Check
from .planted import FAULTS, PROGRAM

pytestmark = TRAINS
QUICK = ("average", "boundary", "buffer", "counter", "order", "sampler", "shared", "time")
"""One of each way in which a fault shows; ``make soak`` plants all."""


@pytest.mark.parametrize("fault", FAULTS if IS_SOAK else QUICK)
def test_a_fault_is_named_by_its_cause_and_by_what_differs_first(
    training: Training, tmp_path: Path, fault: str
) -> None:
    cause, tensor, words = FAULTS[fault]
    found = Check(training, tmp_path, PROGRAM, fault, num_ranks=2 if fault == "shared" else 1).run()
    assert (found.is_same, found.cause, found.tensor) == (False, cause, tensor), found
    assert words in found.why
    assert found.step == (1 if cause is Cause.NONDETERMINISTIC else SAVE_AT + 1)


def test_the_same_program_without_a_fault_is_the_same(training: Training, tmp_path: Path) -> None:
    found = Check(training, tmp_path, PROGRAM).run()
    assert found.is_same, found
    assert found.num_steps == 12
