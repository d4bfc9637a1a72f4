"""The scheduler's loop: snapshot → plan → commit, on a word from the database or after a pause.

Two schedulers are safe, since the commit asks again and the indexes refuse a double; one is efficient, so an advisory
lock keeps one active.
"""

import signal
import threading
import time
from typing import Final

import structlog

from muster.db.engine import make_engine
from muster.db.listening import Wakeups, advisory_lock
from muster.domain.errors import MusterError
from muster.domain.policy import Policy
from muster.domain.principals import Principal, system_principal
from muster.services.fleet import gpu_views
from muster.services.placement import NOTE_WAITING, PLACE, PlacementLostError, note_waiting, place, waiting_jobs
from muster.services.policies import active_policy
from muster.services.unit_of_work import UnitOfWorkFactory, retrying
from muster.settings import Settings
from scheduler.planner import Placement, Plan, plan

LOCK_NAME: Final = "scheduler"
PAUSE_S: Final = 1.0
STANDBY_PAUSE_S: Final = 1.0
_log = structlog.get_logger(__name__)


def run_cycle(units: UnitOfWorkFactory, principal: Principal) -> Plan:
    """One cycle: what fits is placed, what does not says why. A lost race is left to the next cycle."""
    with units.read() as session:
        policy = active_policy(session)
        queue = waiting_jobs(session)
        if not queue:
            return Plan()
        decided = plan(gpu_views(session, units.clock()), queue, policy)
    for placement in decided.placements:
        _commit(units, principal, placement, policy)
    if decided.waiting:
        with units.begin(principal, NOTE_WAITING, quiet=True) as unit:
            note_waiting(unit, decided.waiting)
    return decided


def _commit(units: UnitOfWorkFactory, principal: Principal, placement: Placement, policy: Policy) -> None:
    def commit() -> None:
        with units.begin(principal, PLACE) as unit:
            place(unit, placement, policy)

    try:
        started = time.perf_counter()
        retrying(commit)
        took_ms = round((time.perf_counter() - started) * 1000, 1)
        _log.info("placed", job_id=placement.job_id, nodes=[node for node, _ in placement.parts], commit_ms=took_ms)
    except PlacementLostError as error:
        _log.info("placement_lost", job_id=placement.job_id, why=error.detail)


class SchedulerLoop:
    """Runs cycles until ``stop``: at once when a job or GPU has changed, else each second."""

    def __init__(self, units: UnitOfWorkFactory) -> None:
        self._units = units
        self._principal = system_principal("scheduler")

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with advisory_lock(self._units.engine, LOCK_NAME) as is_active:
                    if is_active:
                        self._run_active(stop)
            except MusterError as error:
                _log.warning("scheduler_pauses", fault=error.detail)
            stop.wait(STANDBY_PAUSE_S)

    def _run_active(self, stop: threading.Event) -> None:
        _log.info("scheduler_active")
        with Wakeups(self._units.engine, "muster_scheduler") as wakeups:
            while not stop.is_set():
                run_cycle(self._units, self._principal)
                wakeups.wait(PAUSE_S)


def run(settings: Settings) -> None:
    """The process ``muster scheduler``: until SIGTERM or SIGINT."""
    settings.require("database_url")
    engine = make_engine(str(settings.database_url), application_name="muster-scheduler")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    SchedulerLoop(UnitOfWorkFactory(engine)).run(stop)
    engine.dispose()
