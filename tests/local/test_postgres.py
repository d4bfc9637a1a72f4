import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, text

from local.binaries import find_postgres
from local.errors import EmbeddedServerError
from local.postgres import PostgresServer


@pytest.fixture(scope="module")
def cluster(server_folder: Path) -> Path:
    """A cluster that no server has used since it was made: making one takes longer than most tests here."""
    folder = Path(tempfile.mkdtemp(prefix="made-", dir=server_folder))
    folder.chmod(0o711)
    made = PostgresServer(folder / "postgres")
    made.start()
    made.stop()
    return folder / "postgres" / "cluster"


@pytest.fixture
def server(short_folder: Path, cluster: Path) -> Iterator[PostgresServer]:
    """A server on a copy of ``cluster``, not started."""
    (short_folder / "postgres").mkdir(mode=0o711)
    subprocess.run(["/bin/cp", "-a", str(cluster), str(short_folder / "postgres" / "cluster")], check=True)
    one = PostgresServer(short_folder / "postgres")
    yield one
    one.stop("immediate")


def write_row(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")


def read_row(server: PostgresServer) -> object:
    with psycopg.connect(server.dsn()) as connection:
        row = connection.execute("SELECT number FROM kept").fetchone()
    return row and row[0]


def test_commits_survive_restart_and_a_kill_of_the_server(server: PostgresServer) -> None:
    server.start()
    write_row(server)
    server.restart()
    assert read_row(server) == 7
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("UPDATE kept SET number = 8")
    server.kill()
    assert not server.is_running()
    server.start()
    assert read_row(server) == 8
    server.stop()


def test_it_listens_on_no_port_and_keeps_its_files_private(server: PostgresServer) -> None:
    server.start()
    with psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
    assert server.socket_dir.stat().st_mode & 0o777 == 0o700
    server.stop()


def test_start_and_stop_may_be_stated_twice(server: PostgresServer) -> None:
    server.start()
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.stop()
    server.stop()
    with pytest.raises(EmbeddedServerError, match="not running"):
        assert server.pid


def test_two_servers_run_side_by_side(short_folder: Path) -> None:
    servers = [PostgresServer(short_folder / name) for name in ("one", "two")]
    for server in servers:
        server.start()
    assert servers[0].url() != servers[1].url()
    assert servers[0].pid != servers[1].pid
    for server in servers:
        server.stop()


def test_a_second_launcher_on_the_same_folder_is_refused(server: PostgresServer, short_folder: Path) -> None:
    server.start()
    with pytest.raises(EmbeddedServerError, match=f"process {os.getpid()} already runs"):
        PostgresServer(short_folder / "postgres").start()
    assert server.is_running()
    server.stop()


def test_a_lock_file_naming_a_living_stranger_does_not_stop_the_start(
    server: PostgresServer, short_folder: Path
) -> None:
    server.start()
    write_row(server)
    lock = short_folder / "postgres" / "cluster" / "postmaster.pid"
    stale = lock.read_text().splitlines()
    server.kill()
    lock.write_text("\n".join([str(os.getpid()), *stale[1:]]) + "\n")
    server.start()
    assert read_row(server) == 7
    server.stop()


def test_an_interrupted_initdb_is_made_again(short_folder: Path) -> None:
    server = PostgresServer(short_folder / "postgres")
    half_made = short_folder / "postgres" / "cluster.making-1"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("15\n")
    server.start()
    assert not half_made.exists()
    server.stop()


def test_a_socket_path_beyond_the_kernels_limit_is_shortened(short_folder: Path) -> None:
    folder = short_folder / ("d" * 60) / ("e" * 60)
    folder.parent.mkdir(mode=0o711)
    server = PostgresServer(folder)
    server.start()
    first_url = server.url()
    assert (folder / "socket").is_symlink()
    assert len(os.fsencode(server.socket_dir)) < 90
    server.restart()
    assert server.url() == first_url
    server.stop()
    server.socket_dir.rmdir()


@pytest.mark.parametrize("name", ["100% 'mine' a#b?c&d=e@f:g", 'my server, "b"'])
def test_a_path_with_spaces_and_signs_works(short_folder: Path, name: str) -> None:
    server = PostgresServer(short_folder / name)
    server.start()
    write_row(server)
    with create_engine(server.url(), poolclass=NullPool).connect() as connection:
        assert connection.scalar(text("SELECT number FROM kept")) == 7
    server.stop()


def test_libpqs_own_variables_change_nothing(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "6000")
    monkeypatch.setenv("PGDATA", "/nowhere")
    server.start()
    write_row(server)
    with create_engine(server.url(), poolclass=NullPool).connect() as connection:
        assert connection.scalar(text("SELECT number FROM kept")) == 7
    server.stop()


def test_databases_are_cloned_and_dropped_though_in_use(server: PostgresServer) -> None:
    server.start()
    server.create_database("first")
    with psycopg.connect(server.dsn("first"), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    server.create_database("second", template="first")
    with closing(psycopg.connect(server.dsn("second"))) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
        server.drop_database("second")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(server.dsn("second"))
    server.stop()


def test_a_server_that_cannot_start_states_why(server: PostgresServer, short_folder: Path) -> None:
    server.start()
    server.stop()
    (short_folder / "postgres" / "cluster" / "postgresql.auto.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(EmbeddedServerError, match="no_such_setting"):
        server.start()
    assert not server.is_running()


def test_a_slow_client_does_not_hold_up_the_stop(server: PostgresServer) -> None:
    server.start()
    with closing(psycopg.connect(server.dsn())) as connection:
        connection.execute("SELECT 1")
        started = time.monotonic()
        server.stop()
        assert time.monotonic() - started < 25, "it was ended by its first signal, not by the patience of 30 s"
    assert not server.is_running()


def test_the_users_own_programs_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = find_postgres()
    monkeypatch.setenv("MUSTER_POSTGRES_BIN", str(found.directory))
    assert find_postgres().directory == found.directory
    monkeypatch.setenv("MUSTER_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match="MUSTER_POSTGRES_BIN"):
        find_postgres()


def test_a_cluster_is_run_by_the_version_that_made_it_or_not_at_all() -> None:
    with pytest.raises(EmbeddedServerError, match="no PostgreSQL 14"):
        find_postgres(major=14)


def test_the_server_outlives_the_thread_that_requested_it(server: PostgresServer) -> None:
    asking = threading.Thread(target=server.start)
    asking.start()
    asking.join()
    time.sleep(0.3)
    assert server.is_running()
    os.kill(server.pid, signal.SIGINT)
    server.stop()
