"""On a real broker: a host's user reaches its own queue, the control plane's all of them, and neither anything else."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from local.binaries import find_broker
from muster.identity import new_id
from muster.ports import meeting_port
from tests.waiting import wait_until
from workers.wakeup.broker_rules import control_rules, host_rules
from workers.wakeup.celery_app import KEY_PREFIX, host_queue
from workers.wakeup.command import BROKER_VARIABLE, ListenerArguments
from workers.wakeup.sender import WakeupSender

ROOT = Path(__file__).resolve().parents[3]
PASSWORD = "only-here"  # of a broker that ends with the tests


class Confined:
    """A host and the control plane as users of the broker. ``refused``: what it refused them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._admin = redis.Redis(port=port)
        self.host, self.control = new_id("node"), new_id("node")
        for user, rules in ((self.host, host_rules(self.host)), (self.control, control_rules())):
            self._admin.execute_command("ACL", "SETUSER", user, "on", f">{PASSWORD}", *rules)  # type: ignore[no-untyped-call]  # its own types leave it out

    def url(self, user: str) -> str:
        return f"redis://{user}:{PASSWORD}@127.0.0.1:{self._port}/0"

    def client(self, user: str) -> "redis.Redis":
        return redis.Redis.from_url(self.url(user))

    @property
    def refused(self) -> list[str]:
        entries = [entry for entry in self._admin.acl_log() if entry["username"] in {self.host, self.control}]
        return [str(entry) for entry in entries if entry["object"] != "client|setinfo"]

    def close(self) -> None:
        self._admin.execute_command("ACL", "DELUSER", self.host, self.control)  # type: ignore[no-untyped-call]  # its own types leave it out
        self._admin.close()


@pytest.fixture(scope="module")
def broker_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a broker that knows users: the shared one has a socket alone."""
    port, folder = meeting_port(), tmp_path_factory.mktemp("broker")
    options = {"bind": "127.0.0.1", "port": str(port), "save": "", "dir": str(folder)}
    command = [str(find_broker().path), *(word for name, value in options.items() for word in (f"--{name}", value))]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as broker:
        with redis.Redis(port=port) as client:
            wait_until(lambda: _answers(client))
        yield port
        broker.terminate()


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.fixture
def confined(broker_port: int) -> Iterator[Confined]:
    confined = Confined(broker_port)
    yield confined
    confined.close()


@pytest.fixture
def wakeup_socket(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as here:
        here.bind(str(tmp_path / "wake"))
        here.settimeout(60)
        yield here


@pytest.fixture
def listener(confined: Confined, wakeup_socket: socket.socket, tmp_path: Path) -> Iterator[Any]:
    arguments = ListenerArguments(confined.host, Path(wakeup_socket.getsockname()), os.getpid())
    environment = {**os.environ, BROKER_VARIABLE: confined.url(confined.host)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(arguments.command(), env=environment, stdout=log, stderr=log)
    yield process
    process.terminate()
    process.wait(60)


def test_a_host_is_woken_and_its_broker_refuses_it_nothing(
    confined: Confined, listener: "subprocess.Popen[bytes]", wakeup_socket: socket.socket
) -> None:
    sender = WakeupSender(confined.url(confined.control))
    for attempt in ("att_1", "att_2"):
        sender.wake(confined.host, attempt)
        assert wakeup_socket.recv(128) == attempt.encode()
    sender.close()
    with confined.client(confined.host) as client:
        wait_until(lambda: not client.hget(f"{KEY_PREFIX}{host_queue(confined.host)}.unacked", "any"))
    listener.terminate()
    listener.wait(60)
    assert confined.refused == []


@pytest.mark.parametrize(
    ("page", "rules"),
    [
        ("docs/install.md", [control_rules(), host_rules("$node")]),
        ("deploy/compose/prepare.sh", [control_rules(), host_rules()]),
    ],
)
def test_what_an_operator_is_given_has_these_rules(page: str, rules: list[list[str]]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    users = [line for line in text.splitlines() if line.startswith("user ") and "password" in line]
    assert [line.partition("password")[2].split()[1:] for line in users] == rules


@pytest.mark.parametrize(
    "command",
    [
        ("BRPOP", f"{KEY_PREFIX}host.node_other", "1"),
        ("LPUSH", f"{KEY_PREFIX}host.node_other", "{}"),
        ("HGET", f"{KEY_PREFIX}unacked", "any"),
        ("GET", f"{KEY_PREFIX}host.own"),
        ("KEYS", "*"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("EVAL", "return 1", "0"),
        ("PUBLISH", "any", "words"),
        ("ACL", "LIST"),
        ("CLIENT", "LIST"),
    ],
)
def test_a_host_may_do_nothing_else(confined: Confined, command: tuple[str, ...]) -> None:
    with confined.client(confined.host) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command)


def test_the_control_plane_reads_no_queue(confined: Confined) -> None:
    with confined.client(confined.control) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.brpop([f"{KEY_PREFIX}{host_queue(confined.host)}"], timeout=1)
