"""A check passes the programs that resume exactly."""

from pathlib import Path

import pytest

from tests.scaled import IS_SOAK
from tests.train.marks import TRAINS
from tests.train.train_case import Training

from .check_case import STEPS, Check
from .planted import CLEAN, CLEAN_PROGRAM

pytestmark = TRAINS
QUICK = ("ahead", "workers", "fsdp2")
"""The others run in a soak, and in `make bench-watch`."""


@pytest.mark.parametrize("kind", list(CLEAN) if IS_SOAK else QUICK)
def test_what_resumes_exactly_is_the_same(training: Training, tmp_path: Path, kind: str) -> None:
    found = Check(training, tmp_path, CLEAN_PROGRAM, kind, num_ranks=CLEAN[kind]).run()
    assert found.is_same, found
    assert found.num_steps == STEPS
