"""No process is left when the process that started the servers is killed without a chance to clean up."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from local.broker import BrokerServer
from local.postgres import PostgresServer
from local.server_files import Owner, is_reachable

# initdb needs a user with a name.
STRANGER = Owner(uid=pwd.getpwnam("daemon").pw_uid, gid=pwd.getpwnam("daemon").pw_gid)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to drop")
ROOT = Path(__file__).parent.parent.parent

# With a uid, its imports happen before it becomes that user, who may not be able to read this interpreter's files.
STARTS_BOTH = """
import os, secrets, sys, time, redis
redis.Redis(unix_socket_path="warms up imports").close()
from pathlib import Path
from local.broker import BrokerServer
from local.postgres import PostgresServer
folder = Path(sys.argv[1])
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
    sys.executable = sys.argv[3]
postgres, broker = PostgresServer(folder / "postgres"), BrokerServer(folder / "broker")
postgres.start()
broker.start()
print(postgres.pid, broker.pid, postgres.dsn(), sep="\\t", flush=True)
time.sleep(600)
"""


def start_both(folder: Path, *user: str) -> tuple[subprocess.Popen[str], int, int, str]:
    log = (folder / "parent.log").open("w")
    with log:
        parent = subprocess.Popen(
            [sys.executable, "-c", STARTS_BOTH, str(folder), *user],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)},
            cwd=folder,
        )
    assert parent.stdout is not None
    for line in parent.stdout:
        parts = line.rstrip("\n").split("\t")
        if len(parts) == 3:
            return parent, int(parts[0]), int(parts[1]), parts[2]
    raise AssertionError((folder / "parent.log").read_text())


def end(parent: subprocess.Popen[str]) -> None:
    parent.kill()
    parent.wait()
    assert parent.stdout is not None
    parent.stdout.close()


def is_gone(pid: int) -> bool:
    """A zombie has ended: in a container its new parent may reap no children."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + 60
    while not all(is_gone(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} are still there"
        time.sleep(0.01)


def test_servers_die_with_a_killed_parent_and_start_again_at_once(short_folder: Path) -> None:
    parent, postgres_pid, broker_pid, dsn = start_both(short_folder)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    end(parent)
    # At once: the new servers meet the old ones while these shut down.
    postgres, broker = PostgresServer(short_folder / "postgres"), BrokerServer(short_folder / "broker")
    postgres.start()
    broker.start()
    wait_until_gone(postgres_pid, broker_pid)
    with psycopg.connect(postgres.dsn()) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
    postgres.stop()
    broker.stop()


def test_everything_killed_at_the_same_moment_recovers(short_folder: Path) -> None:
    parent, postgres_pid, broker_pid, dsn = start_both(short_folder)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    for pid in (postgres_pid, broker_pid):
        os.kill(pid, signal.SIGKILL)
    end(parent)
    postgres, broker = PostgresServer(short_folder / "postgres"), BrokerServer(short_folder / "broker")
    postgres.start()
    broker.start()
    with psycopg.connect(postgres.dsn()) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
    postgres.stop()
    broker.stop()


def test_an_orphan_that_missed_the_signal_is_stopped_by_the_next_start(short_folder: Path) -> None:
    parent, postgres_pid, broker_pid, _dsn = start_both(short_folder)
    # Stopped processes act on no signal until they are continued: to the next start they look like orphans.
    os.kill(broker_pid, signal.SIGSTOP)
    end(parent)
    broker = BrokerServer(short_folder / "broker")
    broker.start()
    wait_until_gone(postgres_pid, broker_pid)
    broker.stop()


@as_root
def test_an_ordinary_user_needs_no_root(short_folder: Path) -> None:
    own, system = Path(sys.executable).resolve(), shutil.which("python3", path="/usr/bin:/usr/local/bin")
    python = str(own) if is_reachable(own, STRANGER) else system
    if python is None:
        pytest.skip("NO PYTHON HERE IS OPEN TO ORDINARY USERS")
    if not is_reachable(Path(__file__), STRANGER):
        pytest.skip("THIS CHECKOUT IS CLOSED TO ORDINARY USERS")
    home = short_folder / "home"
    home.mkdir()
    os.chown(home, STRANGER.uid, STRANGER.gid)
    parent, postgres_pid, broker_pid, _dsn = start_both(home, str(STRANGER.uid), python)
    assert psutil.Process(postgres_pid).uids().real == STRANGER.uid
    assert psutil.Process(broker_pid).uids().real == STRANGER.uid
    end(parent)
    wait_until_gone(postgres_pid, broker_pid)


@as_root
def test_root_hands_its_servers_to_an_unprivileged_user(short_folder: Path) -> None:
    parent, postgres_pid, broker_pid, _dsn = start_both(short_folder)
    assert psutil.Process(postgres_pid).uids().effective != 0
    assert psutil.Process(broker_pid).uids().effective != 0
    end(parent)
    wait_until_gone(postgres_pid, broker_pid)


@pytest.mark.timeout(500)
def test_a_killed_pytest_leaves_nothing(tmp_path: Path) -> None:
    asks = tmp_path / "test_asks.py"
    asks.write_text(
        "import time\n"
        "def test_asks(postgres_server, broker_server, server_folder):\n"
        f"    with open({str(tmp_path / 'servers')!r}, 'w') as servers:\n"
        "        servers.write(f'{postgres_server.pid} {broker_server.pid} {server_folder}\\n')\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", str(asks)]
    said = tmp_path / "servers"
    with subprocess.Popen(
        [*command, "--rootdir", str(tmp_path), "-c", os.devnull],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as killed:
        deadline = time.monotonic() + 180
        while not (said.exists() and said.read_text().endswith("\n")):
            assert killed.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        killed.kill()
    postgres_pid, broker_pid, folder = said.read_text().split()
    wait_until_gone(int(postgres_pid), int(broker_pid))
    deadline = time.monotonic() + 120
    while Path(folder).exists():
        assert time.monotonic() < deadline, f"{folder} is left"
        time.sleep(0.02)
