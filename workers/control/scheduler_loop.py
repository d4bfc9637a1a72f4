"""The scheduler's loop: snapshot → plan → commit, on a notification of the database or after a pause.

Two schedulers are safe, since the commit checks again and the indexes refuse a double; one is efficient, so an
advisory lock keeps one active.
"""

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Final

import structlog

from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, UnitOfWorkFactory, retrying
from control.placement import elastic, preflight
from control.placement.holds import LAPSE, lapse
from control.placement.placement import NOTE_WAITING, PLACE, place
from control.placement.scheduling import question
from control.placement.wait_records import note_waiting
from control.reclaim.notices import NOTIFY, notify
from control.reclaim.victims import withdraw_idle
from control.system.system_figures import SCHEDULER_LOCK
from muster.db.engine import make_engine
from muster.db.notifications import Notifications, advisory_lock
from muster.domain.errors import ConflictError, MusterError
from muster.domain.ids import JobId
from muster.domain.principals import Principal, system_principal
from muster.settings import Settings
from scheduler.planner import Plan, plan

PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 5.0
IDLE_SHARE: Final = 0.1
"""Share of a core for cycles that decide nothing: with many pending jobs, each cycle reads all their requests."""
STANDBY_PAUSE_S: Final = 1.0
_log = structlog.get_logger(__name__)


def run_cycle(units: UnitOfWorkFactory, principal: Principal) -> Plan:
    """Run one cycle: jobs that fit are placed, the others get a reason. The next cycle repeats a lost race.

    First, holds that are no longer needed are released for other jobs, and preflights of new jobs are requested.
    Notices and growth come last.
    """
    for job_id in elastic.let_go_of_idle(units, principal):
        _log.info("hold_lapsed", job_id=job_id)
    unlooked = preflight.request_preflights(units, principal)
    with units.read() as session:
        asked = question(session, units.clock(), unlooked)
    if asked is None:
        return Plan()
    policy = asked.policy
    decided = plan(asked.gpus, asked.queue, policy, asked.workload)
    placed = {placement.job_id for placement in decided.placements}
    for lapsed in decided.lapses:
        if lapsed.beneficiary not in placed:
            _commit(units, principal, LAPSE, partial(lapse, lapsed=lapsed), lapsed.beneficiary)
    for placement in decided.placements:
        nodes = [node for node, _ in placement.parts]
        _commit(
            units, principal, PLACE, partial(place, placement=placement, policy=policy), placement.job_id, nodes=nodes
        )
    for reclaim_id in withdraw_idle(units, principal):
        _log.info("reclaim_withdrawn", reclaim_id=reclaim_id)
    for job_id, chosen in groupby(decided.reclaims, key=lambda reclaim: reclaim.beneficiary):
        _commit(units, principal, NOTIFY, partial(notify, chosen=tuple(chosen), policy=policy), job_id)
    for growth in decided.growths:
        _commit(units, principal, elastic.GROW, partial(elastic.grow, growth=growth, policy=policy), growth.job_id)
    if decided.waiting:
        with units.begin(principal, NOTE_WAITING, quiet=True) as unit:
            note_waiting(unit, decided.waiting)
    return decided


def _commit(
    units: UnitOfWorkFactory,
    principal: Principal,
    action: str,
    work: Callable[[UnitOfWork], object],
    job_id: JobId,
    **words: object,
) -> None:
    """Commit one decision about one job, in a unit of its own."""

    def commit() -> None:
        with units.begin(principal, action) as unit:
            work(unit)

    try:
        started = time.perf_counter()
        retrying(commit)
        took_ms = round((time.perf_counter() - started) * 1000, 1)
        _log.info("decision_committed", action=action, job_id=job_id, commit_ms=took_ms, **words)
    except ConflictError as error:
        _log.info("decision_lost", action=action, job_id=job_id, why=error.detail)


def pause_s(decided: Plan, cpu_s: float) -> float:
    """Return the seconds until the next cycle if nothing wakes it before: changes by time alone are seconds late at
    most.
    """
    if decided.placements or decided.reclaims or decided.withdrawals or decided.growths or decided.lapses:
        return PAUSE_S
    return min(max(PAUSE_S, cpu_s / IDLE_SHARE), MAX_PAUSE_S)


class SchedulerLoop:
    """Loop of cycles until ``stop``: at once when a job or GPU has changed, else after ``pause_s``."""

    def __init__(self, units: UnitOfWorkFactory) -> None:
        self._units = units
        self._principal = system_principal("scheduler")

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with advisory_lock(self._units.engine, SCHEDULER_LOCK) as is_active:
                    if is_active:
                        self._run_active(stop)
            except MusterError as error:
                _log.warning("scheduler_pauses", fault=error.detail)
            stop.wait(STANDBY_PAUSE_S)

    def _run_active(self, stop: threading.Event) -> None:
        _log.info("scheduler_active")
        with Notifications(self._units.engine, SCHEDULER_CHANNEL) as wakeups:
            while not stop.is_set():
                began_s = time.process_time()
                decided = run_cycle(self._units, self._principal)
                wakeups.wait(pause_s(decided, time.process_time() - began_s))


def run(settings: Settings) -> None:
    """Run the process ``muster scheduler`` until SIGTERM or SIGINT."""
    settings.require("database_url")
    engine = make_engine(str(settings.database_url), application_name="muster-scheduler")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    SchedulerLoop(UnitOfWorkFactory(engine)).run(stop)
    engine.dispose()
