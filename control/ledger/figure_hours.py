"""Keeper of the figures: counts each hour again while reports about it may come, then closes it, then sums its day.

One transaction counts one hour: its facts are deleted and made again, so a repetition changes nothing, and a process
that dies leaves the facts of before. Hours from before this release are counted the same way, the newest first, as far
as what they are counted from is stored.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, delete, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as insert_or_leave

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.ledger.figure_costs import count_costs
from control.ledger.figure_counts import COUNTS, DAY, ENDED_LOSSES
from control.ledger.figure_rows import Group, Tally, rows_of
from ledger.figures.convergence import outcome_of
from ledger.figures.definitions import Source
from ledger.figures.faults import Fault, causes_of
from ledger.figures.hours import DAY as A_DAY
from ledger.figures.hours import HOUR, MANY_ATTEMPTS, day_of, hour_of, is_due, is_last, times_for
from ledger.figures.indicators import INDICATORS
from muster.db.models import Attempt, FigureFact, FigureHour, Job
from muster.domain.ids import TenantId
from muster.domain.principals import system_principal
from muster.domain.states import AttemptState, Cause

COUNT: Final = declare_action("figures.count")
DISCOVER: Final = declare_action("figures.discover")
BATCH: Final = 4
_PRINCIPAL: Final = system_principal("figures")
_TURN: Final = text("SELECT pg_try_advisory_xact_lock(hashtext('muster figures'))")
_HOUR_S: Final = 3600


def count_once(units: UnitOfWorkFactory, *, batch: int = BATCH) -> int:
    """Count at most ``batch`` hours that are due, the newest first. Return how many."""
    discover(units, Source.RECORDS, _oldest_record)
    due = due_hours(units, Source.RECORDS, times_for(_num_attempts(units)))
    return sum(count_hour(units, hour) for hour in due[:batch])


def discover(units: UnitOfWorkFactory, source: Source, oldest: Callable[[UnitOfWorkFactory], datetime]) -> None:
    """Add the hours that have begun since the last known one, or at first since the ``oldest`` time of all."""
    with units.read() as session:
        newest = session.scalar(select(func.max(FigureHour.hour)).where(FigureHour.source == source))
    first = hour_of(oldest(units)) if newest is None else newest + HOUR
    now = units.clock()
    if first > now:
        return
    hours = [first + HOUR * place for place in range((now - first) // HOUR + 1)]
    with units.begin(_PRINCIPAL, DISCOVER, quiet=True) as unit:
        rows = [{"source": source, "hour": hour} for hour in hours]
        unit.session.execute(insert_or_leave(FigureHour).on_conflict_do_nothing(), rows)


def due_hours(units: UnitOfWorkFactory, source: Source, times: tuple[timedelta, ...]) -> list[datetime]:
    """Return the hours that are to be counted now, the newest first."""
    now = units.clock()
    query = select(FigureHour.hour, FigureHour.counted_at).where(
        FigureHour.source == source,
        FigureHour.closed_at.is_(None),
        func.coalesce(FigureHour.claimed_until, now) <= now,
    )
    with units.read() as session:
        found = session.execute(query.order_by(FigureHour.hour.desc())).all()
    return [hour for hour, counted_at in found if is_due(hour, counted_at, now, times)]


def count_hour(units: UnitOfWorkFactory, hour: datetime) -> bool:
    """Count one hour from records. Return whether it was this process's turn."""
    with units.begin(_PRINCIPAL, COUNT, quiet=True) as unit:
        if not unit.session.scalar(_TURN) or not _is_open(unit, Source.RECORDS, hour):
            return False
        drop_facts(unit, Source.RECORDS, hour)
        for statement in COUNTS:
            unit.session.execute(statement, _given(hour))
        _count_ended_jobs(unit, hour)
        note_counted(unit, Source.RECORDS, hour)
    return True


def drop_facts(unit: UnitOfWork, source: Source, hour: datetime) -> None:
    _drop(unit, source, hour, _HOUR_S)


def store_facts(unit: UnitOfWork, hour: datetime, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        unit.session.execute(insert(FigureFact), [{"begins_at": hour, "span_s": _HOUR_S, **row} for row in rows])


def note_counted(unit: UnitOfWork, source: Source, hour: datetime) -> None:
    """Note that the hour is counted. It is closed if nothing more can come, and its day summed if it was the last."""
    is_closed = is_last(hour, unit.now)
    counted = update(FigureHour).where(FigureHour.source == source, FigureHour.hour == hour)
    unit.session.execute(
        counted.values(counted_at=unit.now, closed_at=unit.now if is_closed else None, claimed_until=None)
    )
    if is_closed:
        _sum_day(unit, source, day_of(hour))


def _sum_day(unit: UnitOfWork, source: Source, day: datetime) -> None:
    """Sum the hours of a day that is over, once all that are known are closed."""
    is_of_day = (FigureHour.hour >= day) & (FigureHour.hour < day + A_DAY)
    still_open = select(FigureHour.hour).where(FigureHour.source == source, is_of_day, FigureHour.closed_at.is_(None))
    if unit.now < day + A_DAY or unit.session.scalar(still_open.limit(1)) is not None:
        return
    _drop(unit, source, day, int(A_DAY.total_seconds()))
    given = {"begins": day, "ends": day + A_DAY, "figures": figures_of(source)}
    unit.session.execute(DAY, given)


def _drop(unit: UnitOfWork, source: Source, begins_at: datetime, span_s: int) -> None:
    old = delete(FigureFact).where(
        FigureFact.begins_at == begins_at, FigureFact.span_s == span_s, FigureFact.figure.in_(figures_of(source))
    )
    unit.session.execute(old.execution_options(synchronize_session=False))


def figures_of(source: Source) -> list[str]:
    """Return the names under which facts of this source are stored."""
    return [each.name for each in INDICATORS.values() if each.source is source and not each.facts_of]


def _is_open(unit: UnitOfWork, source: Source, hour: datetime) -> bool:
    row = select(FigureHour.closed_at).where(FigureHour.source == source, FigureHour.hour == hour)
    return unit.session.scalars(row.with_for_update()).one() is None


def _oldest_record(units: UnitOfWorkFactory) -> datetime:
    with units.read() as session:
        return session.scalar(select(func.min(Job.created_at))) or units.clock()


def _num_attempts(units: UnitOfWorkFactory) -> int:
    """Return how many attempts have not ended; of many, as many as it takes to know that."""
    some = select(Attempt.id).where(Attempt.state != AttemptState.ENDED).limit(MANY_ATTEMPTS + 1).subquery()
    with units.read() as session:
        return session.scalar(select(func.count()).select_from(some)) or 0


def _given(hour: datetime) -> dict[str, Any]:
    """Return the parameters of the statements that count: the hour, and the causes of each fault."""
    causes = {str(fault): [str(cause) for cause in causes_of(fault)] for fault in Fault}
    return {"begins": hour, "ends": hour + HOUR, **causes}


def _count_ended_jobs(unit: UnitOfWork, hour: datetime) -> None:
    """Count what is judged job by job: convergence, and the cost of epochs."""
    tally = Tally()
    for row in unit.session.execute(ENDED_LOSSES, {"begins": hour, "ends": hour + HOUR}):
        group = Group(TenantId(row.tenant_id), row.tier, row.job_class, row.site)
        tally.add("convergence", _outcome(row), group)
    count_costs(unit, hour, tally)
    store_facts(unit, hour, rows_of(tally))


def _outcome(row: Row[Any]) -> str:
    points = [] if row.history is None else [(step, loss, step_s) for step, loss, step_s in row.history["points"]]
    return outcome_of(points, is_diverged=row.cause == Cause.DIVERGED)
