"""One zygote for the whole session, one job's folder for each test."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from .object_stores import Prefix, S3Server, serving
from .train_case import Training, Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with closing(Zygote()) as zygote:
        yield zygote


@pytest.fixture
def training(zygote: Zygote, tmp_path: Path) -> Iterator[Training]:
    with closing(Training(zygote, tmp_path / "job")) as training:
        yield training


@pytest.fixture(scope="session")
def undisturbed(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> list[dict[int, list[str]]]:
    """What each of two ranks printed in 12 steps that nothing interrupted."""
    attempt = Training(zygote, tmp_path_factory.mktemp("undisturbed")).run(num_ranks=2)
    assert all(list(steps) == list(range(1, 13)) for steps in attempt.steps)
    return attempt.steps


@pytest.fixture(scope="session")
def four_steps(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A job of two ranks whose one attempt saved step 4, for tests that continue from it."""
    return _done(Training(zygote, tmp_path_factory.mktemp("four-steps")), 4)


@pytest.fixture(scope="session")
def eight_steps(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The same with steps 4 and 8."""
    return _done(Training(zygote, tmp_path_factory.mktemp("eight-steps")), 8)


def _done(training: Training, num_steps: int) -> Training:
    training.run("--steps", str(num_steps), num_ranks=2)
    assert training.generations() == [f"step-{step:08d}/gen-1" for step in range(4, num_steps + 1, 4)]
    return training


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serving(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def prefix(s3_server: S3Server, request: pytest.FixtureRequest) -> Prefix:
    """One test's own."""
    return s3_server.prefix(re.sub(r"[^A-Za-z0-9_-]", "_", request.node.name))
