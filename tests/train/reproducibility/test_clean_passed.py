"""A check passes the programs that resume exactly."""

from pathlib import Path

import pytest

from tests.scaled import IS_SOAK
from tests.train.marks import TRAINS
from tests.train.train_case import Training

from .check_case import STEPS, Check

pytestmark = TRAINS
PROGRAM = Path(__file__).with_name("clean_program.py")


QUICK = [("ahead", 1), ("workers", 2), ("fsdp2", 2)]
REST = [("amp", 1), ("accumulation", 2), ("epochs", 1)]


@pytest.mark.parametrize(("kind", "num_ranks"), QUICK + (REST if IS_SOAK else []))
def test_what_resumes_exactly_is_the_same(training: Training, tmp_path: Path, kind: str, num_ranks: int) -> None:
    found = Check(training, tmp_path, PROGRAM, kind, num_ranks=num_ranks).run()
    assert found.is_same, found
    assert found.num_steps == STEPS
