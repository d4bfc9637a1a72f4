"""Commands are forked from one interpreter that has imported their rooms."""

from collections.abc import Iterator

import pytest

from tests.cli.test_commands import Command
from tests.warm_python import WarmPython


@pytest.fixture(scope="session", autouse=True)
def _command_is_warm(warm_muster: WarmPython) -> Iterator[None]:
    Command.warm = warm_muster.path
    yield
    Command.warm = None
