"""GPU cases for the judge: all facts that the rules use, read in a few statements for any number of GPUs."""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Integer, Row, Select, Subquery, bindparam, func, or_, select, true
from sqlalchemy.orm import aliased

from control.core.unit_of_work import UnitOfWork
from control.evidence.rows import (
    BURN_INS_REMEMBERED,
    MOVES_REMEMBERED,
    case_from,
    contact_of,
    evidence_about,
    evidence_of,
)
from control.health.repairs import REPAIRS_REMEMBERED, with_repairs
from health.standing.gpu_case import GpuCase
from muster.db.models import BurnIn, Gpu, GpuStandingChange, Repair
from muster.db.pipeline.packed_arrays import within_parameter
from muster.domain.evidence.findings import Evidence
from muster.domain.ids import GpuUuid
from muster.domain.states import BurnInOutcome, BurnInState


def cases_of(unit: UnitOfWork, gpus: Sequence[Gpu]) -> dict[GpuUuid, GpuCase]:
    """Return the case of each GPU, in the given order."""
    uuids = [gpu.uuid for gpu in gpus]
    told = _reported_of(unit, uuids)
    contacts = contact_of(unit.session, {gpu.node_id for gpu in gpus})
    abandoned = _abandoned_of(unit, uuids)
    moves, burn_ins, repairs = _moves_of(unit, uuids), _burn_ins_of(unit, uuids), _repairs_of(unit, uuids)
    return {
        gpu.uuid: with_repairs(
            case_from(
                gpu,
                told[gpu.uuid],
                moves[gpu.uuid],
                burn_ins[gpu.uuid],
                contacts[gpu.node_id],
                abandoned.get(gpu.uuid),
            ),
            repairs[gpu.uuid],
        )
        for gpu in gpus
    }


def _reported_of(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> Mapping[GpuUuid, list[Evidence]]:
    found = defaultdict[GpuUuid, list[Evidence]](list)
    for row in evidence_about(unit, uuids, ()):
        if row.gpu_uuid is not None:
            found[row.gpu_uuid].append(evidence_of(row))
    return found


def _wanted() -> Subquery:
    """Return the GPUs of the parameter ``uuids``. The queries about them are built once: each judgement asks them."""
    return select(Gpu.uuid, Gpu.serial).where(within_parameter(Gpu.uuid, "uuids")).subquery("wanted")


def _moves_of(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> Mapping[GpuUuid, list[GpuStandingChange]]:
    """Return each GPU's newest moves first, at most ``MOVES_REMEMBERED`` of each."""
    found = defaultdict[GpuUuid, list[GpuStandingChange]](list)
    for row in unit.session.scalars(_newest_moves(), {"uuids": uuids, "most": MOVES_REMEMBERED}):
        found[row.gpu_uuid].append(row)
    return found


@functools.cache
def _newest_moves() -> Select[GpuStandingChange]:
    wanted = _wanted()
    newest = (
        select(GpuStandingChange)
        .where(GpuStandingChange.gpu_uuid == wanted.c.uuid)
        .order_by(GpuStandingChange.id.desc())
        .limit(bindparam("most", type_=Integer()))
        .lateral("newest")
    )
    change = aliased(GpuStandingChange, newest)
    return select(change).select_from(wanted).join(newest, true()).order_by(change.id.desc())


def _burn_ins_of(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> Mapping[GpuUuid, list[Row[*tuple[Any, ...]]]]:
    """Return each GPU's burn-ins that passed or failed, the newest first."""
    found = defaultdict[GpuUuid, list[Row[*tuple[Any, ...]]]](list)
    for row in unit.session.execute(_newest_burn_ins(), {"uuids": uuids, "most": BURN_INS_REMEMBERED}):
        found[row.uuid].append(row)
    return found


@functools.cache
def _newest_burn_ins() -> Select[*tuple[Any, ...]]:
    wanted = _wanted()
    newest = (
        select(
            BurnIn.began_at,
            BurnIn.ended_at,
            BurnIn.outcome,
            BurnIn.ordered_at,
            BurnIn.figures["covers"].label("covers"),
        )
        .where(BurnIn.gpu_uuid == wanted.c.uuid, BurnIn.outcome.in_([BurnInOutcome.PASSED, BurnInOutcome.FAILED]))
        .order_by(BurnIn.ordered_at.desc())
        .limit(bindparam("most", type_=Integer()))
        .lateral("newest")
    )
    query = select(wanted.c.uuid, newest.c.began_at, newest.c.ended_at, newest.c.outcome, newest.c.covers)
    return query.join(newest, true()).order_by(newest.c.ordered_at.desc())


def _abandoned_of(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> Mapping[GpuUuid, datetime]:
    """Return when a burn-in of each GPU was last ABANDONED. GPUs without such a burn-in have no entry."""
    query = (
        select(BurnIn.gpu_uuid, func.max(BurnIn.ended_at))
        .where(BurnIn.gpu_uuid.in_(uuids), BurnIn.state == BurnInState.ABANDONED)
        .group_by(BurnIn.gpu_uuid)
    )
    return {uuid: at for uuid, at in unit.session.execute(query) if at is not None}


def _repairs_of(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> Mapping[GpuUuid, list[Repair]]:
    """Return the repairs of each board, by its serial where it has one, the newest first."""
    found = defaultdict[GpuUuid, list[Repair]](list)
    for uuid, row in unit.session.execute(_newest_repairs(), {"uuids": uuids, "most": REPAIRS_REMEMBERED}):
        found[uuid].append(row)
    return found


@functools.cache
def _newest_repairs() -> Select[GpuUuid, Repair]:
    wanted = _wanted()
    newest = (
        select(Repair)
        .where(or_(Repair.gpu_uuid == wanted.c.uuid, Repair.serial == wanted.c.serial))
        .order_by(Repair.began_at.desc(), Repair.id)
        .limit(bindparam("most", type_=Integer()))
        .lateral("newest")
    )
    repair = aliased(Repair, newest)
    return select(wanted.c.uuid, repair).join(newest, true()).order_by(repair.began_at.desc(), repair.id)
