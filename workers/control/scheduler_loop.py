"""The scheduler's loop: snapshot → plan → commit, on a notification of the database or after a pause.

Two schedulers are safe, since the commit checks again and the indexes refuse a double; one is efficient, so a lease
keeps one active. The progress of the cycle renews it (``muster.db.leader_lease``).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Final

import structlog

from control.core.unit_of_work import SCHEDULER_CHANNEL, Guard, UnitOfWork, UnitOfWorkFactory, retrying
from control.placement import elastic, preflight
from control.placement.holds import LAPSE, lapse
from control.placement.placement import NOTE_WAITING, PLACE, place
from control.placement.residency_holds import hold_outside
from control.placement.scheduling import question
from control.placement.spare_records import NOTE_SPARES, note_spares, stored_spares
from control.placement.wait_records import note_waiting
from control.policy.policies import active_policy
from control.reclaim.notices import NOTIFY, notify
from control.reclaim.victims import withdraw_idle
from control.system import liveness
from control.system.liveness import Reporter
from control.tenants.guarantees import guarantees_now
from muster.db.engine import make_engine
from muster.db.errors import ContentionError, LockTimeoutError
from muster.db.leader_lease import CONSTRAINT, LEASE_S, RENEW_S, LeaderLease, LeadLostError
from muster.db.notifications import Notifications
from muster.domain.errors import ConflictError
from muster.domain.ids import GpuUuid, JobId
from muster.domain.principals import Principal, system_principal
from muster.processes import Loop, run_loops, stop_on_signals
from muster.progress import advance, on_advance
from muster.settings import Settings
from scheduler.planner import Plan, plan

PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 5.0
IDLE_SHARE: Final = 0.1
"""Share of a core for cycles that decide nothing: with many pending jobs, each cycle reads all their requests."""
STANDBY_PAUSE_S: Final = 1.0
_log = structlog.get_logger(__name__)


def _nothing() -> None:
    """Do nothing: this cycle needs no lead."""


def run_cycle(
    units: UnitOfWorkFactory,
    principal: Principal,
    *,
    advanced: Callable[[], None] = _nothing,
    examined_from: int = 0,
) -> Plan:
    """Run one cycle: jobs that fit are placed, the others get a reason. The next cycle repeats a lost race.

    First, holds that are no longer needed are released for other jobs, jobs that a residency rule bars are HELD, and
    preflights of new jobs are requested.
    Notices and growth come last. ``advanced`` is called as the cycle advances; it raises where the lead has ended.
    ``examined_from``: where the plan before has stopped (``Plan.examined_until``).
    """
    for job_id in elastic.let_go_of_idle(units, principal):
        _log.info("hold_lapsed", job_id=job_id)
    hold_outside(units, principal)
    unlooked = preflight.request_preflights(units, principal)
    with units.read() as session:
        guarantees = guarantees_now(session)
        asked = question(session, units.clock(), unlooked)
    if asked is None:
        _store_spares(units, principal, None)
        return Plan()
    policy = asked.policy
    decided = plan(asked.gpus, asked.queue, policy, asked.workload, advanced=advanced, examined_from=examined_from)
    placed = {placement.job_id for placement in decided.placements}
    for lapsed in decided.lapses:
        if lapsed.beneficiary not in placed:
            _commit(units, principal, LAPSE, partial(lapse, lapsed=lapsed), lapsed.beneficiary)
    for placement in decided.placements:
        nodes = [node for node, _ in placement.parts]
        placing = partial(place, placement=placement, policy=policy, planned_under=guarantees)
        _commit(units, principal, PLACE, placing, placement.job_id, nodes=nodes)
    for reclaim_id in withdraw_idle(units, principal):
        _log.info("reclaim_withdrawn", reclaim_id=reclaim_id)
    for job_id, chosen in groupby(decided.reclaims, key=lambda reclaim: reclaim.beneficiary):
        _commit(units, principal, NOTIFY, partial(notify, chosen=tuple(chosen), policy=policy), job_id)
    for growth in decided.growths:
        growing = partial(elastic.grow, growth=growth, policy=policy, planned_under=guarantees)
        _commit(units, principal, elastic.GROW, growing, growth.job_id)
    if decided.waiting:
        with units.begin(principal, NOTE_WAITING, quiet=True) as unit:
            note_waiting(unit, decided.waiting)
    _store_spares(units, principal, decided.spares)
    return decided


def _store_spares(units: UnitOfWorkFactory, principal: Principal, spares: Sequence[GpuUuid] | None) -> None:
    """Store the spares of a plan if they have changed. None: there is no plan, and the spares stay as they are.

    Without a plan too they end once the policy keeps none.
    """
    with units.read() as session:
        before = stored_spares(session)
        is_off = spares is None and active_policy(session).recovery.spares.confidence is None
    after = () if is_off else spares
    if after is not None and before != set(after):
        with units.begin(principal, NOTE_SPARES, quiet=True) as unit:
            note_spares(unit, after)


def _commit(
    units: UnitOfWorkFactory,
    principal: Principal,
    action: str,
    work: Callable[[UnitOfWork], object],
    job_id: JobId,
    **words: object,
) -> None:
    """Commit one decision about one job, in a unit of its own. If others hold its rows for too long, it is lost."""

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
    except (ContentionError, LockTimeoutError):
        _log.info("decision_lost", action=action, job_id=job_id, why="another change held its rows for too long")


def pause_s(decided: Plan, cpu_s: float) -> float:
    """Return the seconds until the next cycle if nothing wakes it before: changes by time alone are seconds late at
    most.
    """
    if decided.examined_until:  # the round over the queue takes several cycles: at most half a core
        return max(PAUSE_S, cpu_s)
    if decided.placements or decided.reclaims or decided.withdrawals or decided.growths or decided.lapses:
        return PAUSE_S
    return min(max(PAUSE_S, cpu_s / IDLE_SHARE), MAX_PAUSE_S)


class SchedulerLoop:
    """Loop of cycles until ``stop``: at once when a job or GPU has changed, else after ``pause_s``."""

    def __init__(self, units: UnitOfWorkFactory, *, instance: str = "", lease_s: float = LEASE_S) -> None:
        self._units = units
        self._principal = system_principal("scheduler")
        self._lease = LeaderLease(units.engine, liveness.SCHEDULER, instance, lease_s=lease_s)

    def run(self, stop: threading.Event) -> None:
        """Lead where no other process does, else ask again each second. Raises ``UnavailableError``."""
        while not stop.is_set():
            if self._lease.take():
                try:
                    self._run_active(stop)
                finally:
                    self._lease.close()
            stop.wait(STANDBY_PAUSE_S)

    def _run_active(self, stop: threading.Event) -> None:
        _log.info("scheduler_active")
        lost = LeadLostError("another scheduler has the lead: nothing of this change was stored")
        units = replace(self._units, guard=Guard(self._lease.guard, CONSTRAINT, lost))
        with on_advance(self._lease.advance), Notifications(self._units.engine, SCHEDULER_CHANNEL) as wakeups:
            decided = Plan()
            while not stop.is_set():
                began_s = time.process_time()
                examined_from = decided.examined_until
                decided = run_cycle(units, self._principal, advanced=self._advanced, examined_from=examined_from)
                self._rest(wakeups, pause_s(decided, time.process_time() - began_s))

    def _advanced(self) -> None:
        advance()
        self._lease.require()

    def _rest(self, wakeups: Notifications, pause_s: float) -> None:
        """Wait for a notification, in parts: the lease is renewed in between."""
        until_s = time.monotonic() + pause_s
        while (left_s := until_s - time.monotonic()) > 0 and not wakeups.wait(min(left_s, RENEW_S)):
            self._lease.require()


def run(settings: Settings) -> None:
    """Run the process ``muster scheduler`` until SIGTERM or SIGINT."""
    settings.require("database_url")
    stop = stop_on_signals()
    engine = make_engine(str(settings.database_url), application_name="muster-scheduler")
    units = UnitOfWorkFactory(engine)
    reporter = Reporter(units, "scheduler")
    loop = SchedulerLoop(units, instance=reporter.instance, lease_s=settings.scheduler_lease_s)
    run_loops([Loop(liveness.SCHEDULER, loop.run)], stop, report=reporter.report)
    engine.dispose()
