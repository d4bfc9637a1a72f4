"""One interpreter that has imported the command's rooms, from which commands are forked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_commands import Command
from tests.warm_python import WarmPython

ROOMS = ("muster.cli.*", "muster.client.rest", "muster.embedded.local_stack", "muster.services.unit_of_work")


@pytest.fixture(scope="session", autouse=True)
def warm_command(server_folder: Path) -> Iterator[None]:
    folder = server_folder / "warm-command"
    folder.mkdir()
    with WarmPython(folder, *ROOMS) as warm:
        Command.warm = warm.path
        yield
        Command.warm = None
