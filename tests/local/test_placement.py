import os
import shutil
import socket
from pathlib import Path

import psycopg
import pytest

from local import binaries
from local.binaries import BrokerBinary, find_broker, reachable_broker
from local.postgres import PostgresServer
from local.server_files import Owner, is_reachable, prepare_home
from muster.ports import MEETING_PORTS, free_port, meeting_port, port_is_taken

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs its servers as another user")


def test_a_free_port_is_free_until_someone_listens() -> None:
    port = free_port()
    assert not port_is_taken(port)
    with socket.create_server(("127.0.0.1", port)):
        assert port_is_taken(port)
    assert not port_is_taken(port)


def test_where_programs_meet_later_is_no_port_that_a_connection_is_given() -> None:
    """One that goes out holds its port as one that listens does: the gang's first program could not listen there."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split())
    if not set(MEETING_PORTS).isdisjoint(range(low, high + 1)):
        pytest.skip("this machine gives connections any port")
    port = meeting_port()
    assert port in MEETING_PORTS
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        assert port_is_taken(port)
        assert meeting_port() != port


def test_a_folder_is_reachable_only_if_every_parent_lets_its_user_through(short_folder: Path) -> None:
    stranger = Owner(uid=54321, gid=54321)
    inner = short_folder / "parent" / "inner"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o711)
    assert is_reachable(inner, stranger)
    inner.parent.chmod(0o700)
    assert not is_reachable(inner, stranger)


@as_root
def test_data_below_a_closed_folder_moves_to_the_same_open_place_each_time(short_folder: Path) -> None:
    closed = short_folder / "closed"
    closed.mkdir(mode=0o700)
    server = PostgresServer(closed / "postgres")
    server.start()
    place = Path((closed / "postgres" / "location").read_text().strip())
    assert server.socket_dir == place / "socket"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept ()")
    server.stop()
    again = PostgresServer(closed / "postgres")
    again.start()
    with psycopg.connect(again.dsn()) as connection:
        connection.execute("SELECT FROM kept")
    again.stop()
    assert closed.stat().st_mode & 0o777 == 0o700
    assert prepare_home(closed / "postgres").path == place
    shutil.rmtree(place)


@as_root
def test_programs_below_a_closed_folder_are_copied_once(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, opened = short_folder / "closed", short_folder / "opened"
    closed.mkdir(mode=0o700)
    opened.mkdir(mode=0o755)
    program = closed / "valkey-server"
    shutil.copy2(find_broker().path, program)
    monkeypatch.setattr(binaries, "open_parent", lambda: opened)
    first = reachable_broker(BrokerBinary(program, "9"), Owner(uid=54321, gid=54321))
    assert is_reachable(first.path, Owner(uid=54321, gid=54321))
    assert first.path.read_bytes() == program.read_bytes()
    assert reachable_broker(BrokerBinary(program, "9"), Owner(uid=54321, gid=54321)) == first
    assert len(list(opened.iterdir())) == 1
