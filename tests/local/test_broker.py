import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.contrib.testing.worker import start_worker

from local.binaries import find_broker
from local.broker import BrokerServer
from local.errors import EmbeddedServerError
from tests.waiting import wait_until


@pytest.fixture
def broker(short_folder: Path) -> Iterator[BrokerServer]:
    one = BrokerServer(short_folder / "broker")
    yield one
    one.stop()


def client(broker: BrokerServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(broker.socket))


def test_messages_survive_a_restart(broker: BrokerServer) -> None:
    broker.start()
    with client(broker) as connection:
        connection.rpush("queue", "bell")
    broker.restart()
    with client(broker) as connection:
        assert connection.lrange("queue", 0, -1) == [b"bell"]
    broker.stop()


def test_messages_older_than_a_second_survive_a_kill(broker: BrokerServer) -> None:
    broker.start()
    with client(broker) as connection:
        connection.rpush("queue", "bell")
    time.sleep(1.2)
    broker.kill()
    broker.start()
    with client(broker) as connection:
        assert connection.lrange("queue", 0, -1) == [b"bell"]
    broker.stop()


def test_a_half_written_command_at_the_end_is_cut_off(broker: BrokerServer, short_folder: Path) -> None:
    broker.start()
    with client(broker) as connection:
        connection.rpush("queue", "bell")
    broker.stop()
    (increments,) = (short_folder / "broker" / "data").glob("appendonlydir/*.incr.aof")
    with increments.open("ab") as file:
        file.write(b"*3\r\n$5\r\nRPUSH\r\n$5\r\nque")
    broker.start()
    with client(broker) as connection:
        assert connection.lrange("queue", 0, -1) == [b"bell"]
    broker.stop()


def test_it_never_forgets_to_make_room_and_opens_no_port(broker: BrokerServer) -> None:
    broker.start()
    with client(broker) as connection:
        assert connection.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert connection.config_get("port")["port"] == "0"
    assert broker.socket.parent.stat().st_mode & 0o777 == 0o700
    broker.stop()


def test_flush_all_empties_it(broker: BrokerServer) -> None:
    broker.start()
    with client(broker) as connection:
        connection.set("key", 1)
        broker.flush_all()
        assert connection.dbsize() == 0
    broker.stop()


def test_two_brokers_run_side_by_side(short_folder: Path) -> None:
    brokers = [BrokerServer(short_folder / name) for name in ("one", "two")]
    for broker in brokers:
        broker.start()
    assert brokers[0].url != brokers[1].url
    for broker in brokers:
        broker.stop()


def test_a_second_launcher_on_the_same_folder_is_refused(broker: BrokerServer, short_folder: Path) -> None:
    broker.start()
    with pytest.raises(EmbeddedServerError, match="already runs"):
        BrokerServer(short_folder / "broker").start()
    broker.stop()


def test_a_socket_path_beyond_the_kernels_limit_is_shortened(short_folder: Path) -> None:
    folder = short_folder / ("d" * 60) / ("e" * 60)
    folder.parent.mkdir(mode=0o711)
    broker = BrokerServer(folder)
    broker.start()
    assert len(os.fsencode(broker.socket)) <= 103
    broker.stop()
    broker.socket.parent.rmdir()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_celery_connects_to_it_through_a_folder_with_spaces(short_folder: Path) -> None:
    broker = BrokerServer(short_folder / "my 100% broker")
    broker.start()
    app = Celery("bells", broker=broker.url)
    app.conf.update(worker_enable_remote_control=False, broker_connection_retry_on_startup=False)
    rung = short_folder / "rung"

    @app.task(name="bells.ring")
    def wake() -> None:
        rung.touch()

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=60.0):
        wake.apply_async()
        wait_until(rung.exists)
    broker.stop()


def test_the_users_own_program_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_BROKER_BIN", str(find_broker().path))
    assert find_broker().path == Path(os.environ["MUSTER_BROKER_BIN"])
    monkeypatch.setenv("MUSTER_BROKER_BIN", str(tmp_path / "none"))
    with pytest.raises(EmbeddedServerError, match="MUSTER_BROKER_BIN"):
        find_broker()
