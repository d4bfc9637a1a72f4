"""A killed process comes back, is reported once, and stays ended once the stack ends."""

import os
import signal
from pathlib import Path

from local.children import Child
from local.errors import EmbeddedServerError
from local.restarts import Keeper
from tests.waiting import wait_until


class Server:
    pid = 1

    def __init__(self, faults: int = 0) -> None:
        self.is_up = True
        self.faults = faults

    def is_running(self) -> bool:
        return self.is_up

    def start(self) -> None:
        if self.faults:
            self.faults -= 1
            raise EmbeddedServerError("its disk is full")
        self.is_up = True


def test_a_server_that_ended_is_started_until_it_starts() -> None:
    said: list[str] = []
    server = Server(faults=1)
    server.is_up = False
    keeper = Keeper({"broker": server}, [], said.append)
    keeper.check()
    assert not server.is_up
    keeper.check()
    assert server.is_up
    keeper.check()
    assert said == [
        "broker ended; starting it again",
        "broker does not start: its disk is full",
        "broker ended; starting it again",
    ]


def test_a_killed_child_comes_back_and_a_closed_keeper_starts_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    variables = {"PATH": os.environ["PATH"], "MUSTER_API_URL": "http://127.0.0.1:1", **_own_state(tmp_path)}
    child = Child("agent", ["agent", "run", "--simulated", "h100", "--gpus", "1"], variables, tmp_path / "log")
    keeper = Keeper({}, [], said.append)
    child.start()
    keeper.watch([child])
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not child.is_running())
    keeper.check()
    assert len(said) == 1
    assert said[0].startswith("agent ended (signal SIGKILL)")
    wait_until(lambda: _checked(keeper, child))
    assert child.pid != first
    keeper.close()
    child.stop()
    keeper.check()
    assert not child.is_running()


def _checked(keeper: Keeper, child: Child) -> bool:
    keeper.check()
    return child.is_running()


def _own_state(folder: Path) -> dict[str, str]:
    key = folder / "key"
    key.write_text("mst_test", encoding="ascii")
    return {"MUSTER_STATE_DIR": str(folder / "state"), "MUSTER_API_KEY_FILE": str(key)}
