"""Reports of hosts that an attempt makes no progress, stored until a verdict takes them in.

A host sends one while its ranks stand still, and its newest replaces the one before. It is stored whole or not at all.
The host's name and the GPUs of its ranks are ours: the report cannot blame another host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, ColumnElement, cast, false, func, select

from control.attempts.attempts import LoadedAttempt
from control.attempts.ranks import gpus_by_rank, num_ranks, ranks_of
from control.core.unit_of_work import UnitOfWork
from control.watch.host_evidence import with_measured
from muster.db.models import AttemptHost, Node, StallReport
from muster.domain.ids import AttemptId, GpuUuid
from muster.domain.states import AttemptState
from watch.forensics.documents import from_document, to_document
from watch.forensics.newest import newest_of
from watch.reports import HostReport, RankReport

MOST_BYTES: Final = 512 << 10
"""Largest report that is stored, as JSON. A host's own bounds keep it far below."""
MOST_COLLECTIVES: Final = 64
MOST_HOSTS: Final = 256
"""Most reports that one verdict takes in."""
IS_EARLY: Final = func.coalesce(StallReport.report["needs_gpus"].as_boolean(), false())
"""The same as ``needs_gpus`` in a query: a host of an earlier release reports no such field."""
_WITHOUT_VERDICT: Final = frozenset({AttemptState.ENDED, AttemptState.STOPPING})


def note_stalled(unit: UnitOfWork, loaded: LoadedAttempt, host: AttemptHost, document: Mapping[str, Any]) -> bool:
    """Store a host's report on a locked attempt. Return whether it could be read and concerns a running attempt."""
    try:
        report = from_document(document)
    except ValueError:
        return False
    own, world = ranks_of(loaded, host), num_ranks(loaded)
    ranks = tuple(_bounded(rank, world) for rank in report.ranks if rank.rank in own)
    stored = to_document(replace(report, ranks=ranks))
    if not ranks or loaded.attempt.state in _WITHOUT_VERDICT or len(msgspec.json.encode(stored)) > MOST_BYTES:
        return False
    row = unit.session.get(StallReport, (loaded.attempt.id, host.node_id))
    if row is None:
        row = StallReport(attempt_id=loaded.attempt.id, node_id=host.node_id, report=stored, received_at=unit.now)
        unit.session.add(row)
    if row.judged_at is not None:  # a repeated report does not begin the wait for other hosts again
        row.received_at = unit.now
    row.report, row.judged_at, row.moved_at = stored, None, None
    return True


def note_moving(unit: UnitOfWork, loaded: LoadedAttempt, host: AttemptHost) -> bool:
    """Note that a host's ranks make progress again: a report that no verdict has taken in is dropped. Return True.

    So is one of ranks that may have worked on their GPUs: programs are silent for a while at any time.
    """
    row = unit.session.get(StallReport, (loaded.attempt.id, host.node_id))
    if row is not None and (row.judged_at is None or needs_gpus(row)):
        unit.session.delete(row)
    elif row is not None:
        row.moved_at = unit.now
    return True


def needs_gpus(row: StallReport) -> bool:
    """Return whether the ranks of a report are overdue only if their GPUs wait in a collective."""
    return row.report.get("needs_gpus") is True


def _bounded(rank: RankReport, world: int) -> RankReport:
    """Leave out members that are no ranks of the attempt, and old entries: a program may have written any."""
    newest = newest_of(rank.collectives, MOST_COLLECTIVES)
    kept = tuple(replace(each, ranks=tuple(one for one in each.ranks if one < world)) for each in newest)
    return replace(rank, collectives=kept)


def reports_of(unit: UnitOfWork, loaded: LoadedAttempt, *, do_gpus_wait: bool = True) -> tuple[HostReport, ...]:
    """Return the stored reports of an attempt by rank of their hosts, with our names of hosts and GPUs.

    What the hosts' agents measured in the last minutes is added, and stored with them. Of many hosts, those are read
    whose first rank has done the least: the rank at fault is behind the ranks that wait for it. ``do_gpus_wait``: the
    GPUs of ranks that need it; else these ranks only use the processor, and their reports state that alone.
    """
    query = (
        select(StallReport, AttemptHost.node_rank, Node.name)
        .join(
            AttemptHost,
            (AttemptHost.attempt_id == StallReport.attempt_id) & (AttemptHost.node_id == StallReport.node_id),
        )
        .join(Node, Node.id == StallReport.node_id)
        .where(StallReport.attempt_id == loaded.attempt.id)
        .order_by(_first_rank("step"), _first_rank("ticks"), AttemptHost.node_rank)
        .limit(MOST_HOSTS)
    )
    gpus = gpus_by_rank(unit, loaded)
    found = sorted(unit.session.execute(query).all(), key=lambda each: each[1])
    stated = {row.node_id: _named(from_document(row.report), node_name, gpus) for row, _, node_name in found}
    whole = with_measured(unit, loaded, stated)
    for row, _, _ in found:  # kept with the attempt, for the page of the job
        row.report = to_document(whole[row.node_id])
    if do_gpus_wait:
        return tuple(whole.values())
    return tuple(replace(each, is_busy=each.is_busy and not each.needs_gpus) for each in whole.values())


def _first_rank(field: str) -> ColumnElement[int]:
    return cast(StallReport.report["ranks"][0][field].astext, BigInteger)


def unjudged(unit: UnitOfWork, attempt_id: AttemptId) -> Sequence[StallReport]:
    """Return the attempt's reports that no verdict has taken in, locked."""
    query = select(StallReport).where(StallReport.attempt_id == attempt_id, StallReport.judged_at.is_(None))
    return unit.session.scalars(query.order_by(StallReport.node_id).with_for_update()).all()


def early_reports(unit: UnitOfWork, attempt_id: AttemptId) -> Sequence[StallReport]:
    """Return the attempt's reports of ranks that are overdue only if their GPUs wait, judged ones too."""
    query = select(StallReport).where(StallReport.attempt_id == attempt_id, IS_EARLY)
    return unit.session.scalars(query.order_by(StallReport.node_id)).all()


def _named(report: HostReport, node_name: str, gpus: Mapping[int, GpuUuid]) -> HostReport:
    ranks = tuple(replace(rank, gpu=gpus.get(rank.rank, "")) for rank in report.ranks)
    return replace(report, node=node_name, ranks=ranks)
