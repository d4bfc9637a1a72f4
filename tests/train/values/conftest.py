"""One undisturbed run of three ranks for all tests of faults."""

import pytest

from tests.train.train_case import HERE, Training, Zygote

WATCHED = HERE / "watched_program.py"
Steps = list[dict[int, list[str]]]


@pytest.fixture(scope="session")
def three_undisturbed(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """What each of three ranks printed in 16 steps: loss, a sum of weights, a random number, samples."""
    return Training(zygote, tmp_path_factory.mktemp("watched")).run(num_ranks=3, program=WATCHED).steps
