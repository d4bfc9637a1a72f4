"""Failpoints: armed by the environment, known by name, and deadly where asked."""

import os
import signal
import subprocess
import sys
import time

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from muster.db.models import AuditEntry, Event, OutboxMessage, Tenant
from muster.failpoints import FailpointConfigError, FailpointError, arming, declare, declared, failpoint

ONE = declare("test.one")
TRACES = (Tenant, Event, AuditEntry, OutboxMessage)
CHILD = """
import sys
from muster import failpoints
from muster.db.engine import make_engine
from muster.db.models import Tenant
from muster.domain.principals import system_principal
from control.core.unit_of_work import UnitOfWorkFactory, declare_action

action = declare_action("child.enrol")
failpoints.require_known()
with UnitOfWorkFactory(make_engine(sys.argv[1])).begin(system_principal("child"), action) as unit:
    unit.session.add(Tenant(id="ten_1", name="acme", created_at=unit.now))
    unit.emit("tenant.enrolled", "tenant", "ten_1")
    unit.audit("tenant.enrol", "tenant", "ten_1")
    unit.enqueue("webhook", "ten_1")
"""


def run_child(database_url: str, armed: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", CHILD, database_url],
        env={**os.environ, "MUSTER_FAILPOINTS": armed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


@pytest.mark.parametrize(("point", "rows"), [("before_commit", 0), ("after_commit", 1)])
def test_a_process_killed_around_the_commit_leaves_all_or_nothing(
    database_url: str, engine: Engine, point: str, rows: int
) -> None:
    assert run_child(database_url, f"child.enrol.{point}=kill").returncode == -signal.SIGKILL
    with Session(engine) as session:
        assert [session.scalars(select(func.count()).select_from(table)).one() for table in TRACES] == [rows] * 4


def test_an_unknown_name_stops_the_process_at_its_start(database_url: str) -> None:
    child = run_child(database_url, "child.enroll.before_commit=kill")
    assert child.returncode == 1
    assert "child.enroll.before_commit, which no module declares" in child.stderr


@pytest.mark.parametrize("armed", ["test.one", "test.one=explode", "test.one=kill@0", "test.one=sleep", "=kill"])
def test_what_cannot_be_read_is_refused(armed: str) -> None:
    with pytest.raises(FailpointConfigError, match="NAME=kill"), arming(armed):
        pass


def test_only_the_nth_hit_counts() -> None:
    with arming("test.one=raise@3"):
        failpoint(ONE)
        failpoint(ONE)
        with pytest.raises(FailpointError, match=r"test\.one"):
            failpoint(ONE)
        failpoint(ONE)


def test_a_pause_is_as_long_as_requested() -> None:
    began = time.monotonic()
    with arming("test.one=sleep:0.05"):
        failpoint(ONE)
    assert time.monotonic() - began >= 0.05


def test_nothing_happens_when_nothing_is_armed() -> None:
    failpoint(ONE)
    assert ONE in declared()
