"""A database that vanishes without a word: each exchange ends by a deadline, with its cause, and the next one works."""

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from control.core.unit_of_work import UnitOfWorkFactory
from muster.db import notifications
from muster.db.engine import driver_url, make_engine
from muster.db.errors import translated_errors
from muster.db.leader_lease import LeaderLease, LeadLostError
from muster.db.notifications import Notifications
from muster.db.pipeline.batched import query_together
from muster.db.pipeline.pg_pipeline import Query
from muster.domain.errors import UnavailableError
from muster.ports import free_port
from muster.processes import Loop, cause_of, start_loop
from tests.fleet_factory import enrol_host
from tests.hand_clock import HandClock
from tests.liveness.silent_proxy import SilentProxy
from tests.waiting import wait_until
from workers.control.scheduler_loop import SchedulerLoop

ONE: Query = ("SELECT 1 AS one", {})


def by_the_orm(engine: Engine) -> object:
    with translated_errors(), Session(engine) as session:
        return session.scalar(text("SELECT 1"))


def by_the_pipeline(engine: Engine) -> object:
    with translated_errors(), Session(engine) as session:
        return query_together(session, ONE, ONE)[1][0].one


def alone(engine: Engine) -> object:
    return UnitOfWorkFactory(engine).ask(*ONE)[0].one


@pytest.mark.parametrize(("ask", "waited_s"), [(by_the_orm, 0.5), (by_the_pipeline, 0.7), (alone, 0.5)])
def test_each_exchange_ends_by_its_deadline_and_the_next_one_works(
    ask: Callable[[Engine], object], waited_s: float, proxy: SilentProxy, behind_proxy: Engine
) -> None:
    with behind_proxy.connect(), behind_proxy.connect():
        pass  # two connections of the pool, which a moment ago were good
    assert ask(behind_proxy) == 1
    proxy.silence()
    with capture_logs() as lines, pytest.raises(UnavailableError) as raised:
        ask(behind_proxy)
    assert cause_of(raised.value) == f"the database at 127.0.0.1:{proxy.port} has not answered for {waited_s} s"
    assert [line["server"] for line in lines if line["event"] == "database_silent"] == [f"127.0.0.1:{proxy.port}"]
    proxy.speak()
    assert ask(behind_proxy) == 1, "the other connection is asked before it is lent"


def many(session: Session, pauses_s: list[float]) -> None:
    session.execute(text("SELECT pg_sleep(:pause_s)"), [{"pause_s": each} for each in pauses_s])


def pipelined(session: Session, pauses_s: list[float]) -> None:
    query_together(session, *(("SELECT pg_sleep(%(pause_s)s)::text AS slept", {"pause_s": each}) for each in pauses_s))


@pytest.mark.parametrize("ask", [many, pipelined])
def test_statements_that_each_keep_their_limit_are_no_silence(
    ask: Callable[[Session, list[float]], None], behind_proxy: Engine
) -> None:
    with Session(behind_proxy) as session:
        ask(session, [0.1] * 8)  # more than the 0.5 s of one
        assert session.scalar(text("SELECT 1")) == 1


def test_a_transaction_in_progress_ends_too(proxy: SilentProxy, behind_proxy: Engine) -> None:
    session = Session(behind_proxy)
    session.execute(text("SELECT 1"))
    proxy.silence()
    with pytest.raises(UnavailableError), translated_errors():
        session.commit()
    session.close()


def test_a_listener_whose_connection_is_dead_notices_it(
    proxy: SilentProxy, behind_proxy: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "CHECK_S", 0.0)
    with Notifications(behind_proxy, "muster_events") as wakeups:
        assert not wakeups.wait(0.01)
        proxy.silence()
        with pytest.raises(UnavailableError):
            wakeups.wait(0.01)
        proxy.speak()
        assert not wakeups.wait(0.01)


def test_a_lead_that_cannot_be_renewed_ends_by_itself(proxy: SilentProxy, behind_proxy: Engine) -> None:
    clock = HandClock()
    lease = LeaderLease(behind_proxy, "scheduler", "a", clock=clock)
    assert lease.take()
    proxy.silence()
    clock.now_s = 2.0
    lease.require()
    clock.now_s = 8.1
    with pytest.raises(LeadLostError, match="could not be renewed in time"):
        lease.require()


def test_the_scheduler_reports_why_it_pauses_and_works_afterwards(
    proxy: SilentProxy, behind_proxy: Engine, engine: Engine
) -> None:
    stop = threading.Event()
    units = UnitOfWorkFactory(engine)
    loop = SchedulerLoop(UnitOfWorkFactory(behind_proxy), instance="a", lease_s=0.5)
    with capture_logs() as lines:
        watched, thread = start_loop(Loop("scheduler", loop.run), stop)
        wait_until(lambda: any(line["event"] == "scheduler_active" for line in lines))
        proxy.silence()
        wait_until(lambda: any(line["event"] == "loop_pauses" for line in lines))
        pause = next(line for line in lines if line["event"] == "loop_pauses")
        assert pause["loop"] == "scheduler"
        assert "has not answered" in f"{pause['cause']} {[line for line in lines if 'cause' in line]}"
        num_active = sum(line["event"] == "scheduler_active" for line in lines)
        proxy.speak()
        wait_until(lambda: sum(line["event"] == "scheduler_active" for line in lines) > num_active)
        stop.set()
        thread.join()
    assert not watched.progress.is_stalled
    assert enrol_host(units, "alpha")


def test_the_first_host_that_answers_is_used(proxy: SilentProxy) -> None:
    url = proxy.url.replace(f":{proxy.port}/", f":{free_port()},127.0.0.1:{proxy.port}/")
    engine = make_engine(url)
    assert by_the_orm(engine) == 1
    engine.dispose()
    assert "target_session_attrs=read-write" in str(driver_url(url))


def test_of_several_hosts_none_that_takes_no_writes_is_used(proxy: SilentProxy, engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    hosts = proxy.url.replace(f":{proxy.port}/", f":{proxy.port},127.0.0.1:{proxy.port}/")
    behind = make_engine(hosts)
    with pytest.raises(UnavailableError) as raised:
        by_the_orm(behind)
    assert "read-only" in str(cause_of(raised.value))
    behind.dispose()


def test_a_connection_to_a_server_that_became_a_standby_is_given_up(behind_proxy: Engine) -> None:
    def pid() -> object:
        with behind_proxy.connect() as connection:
            return connection.scalar(text("SELECT pg_backend_pid()"))

    first = pid()
    for ask in (_write_by_the_orm, _write_by_the_pipeline):
        with pytest.raises(UnavailableError):
            ask(behind_proxy)
        assert pid() != first
        first = pid()


def _write_by_the_orm(engine: Engine) -> None:
    with translated_errors(), Session(engine) as session:
        session.execute(text("SET TRANSACTION READ ONLY"))
        session.execute(text("DELETE FROM loop_progress"))


def _write_by_the_pipeline(engine: Engine) -> None:
    with translated_errors(), Session(engine) as session:
        query_together(session, ("SET TRANSACTION READ ONLY", {}), ("DELETE FROM loop_progress", {}))


@pytest.mark.parametrize(
    ("url", "hosts", "ports"),
    [
        ("postgresql://u:p%40@one:1,two/db", "one,two", "1,5432"),
        ("postgresql://u@one,[::1]:55,[::2]/db?sslmode=require", "one,::1,::2", "5432,55,5432"),
        ("postgresql://one,two", "one,two", "5432,5432"),
    ],
)
def test_several_hosts_are_written_as_libpq_writes_them(url: str, hosts: str, ports: str) -> None:
    found = driver_url(url).query
    assert (found["host"], found["port"], found["target_session_attrs"]) == (hosts, ports, "read-write")


def test_an_own_choice_among_hosts_stays() -> None:
    assert driver_url("postgresql://one,two/db?target_session_attrs=any").query["target_session_attrs"] == "any"
    assert "target_session_attrs" not in driver_url("postgresql://one/db").query
