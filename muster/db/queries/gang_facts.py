"""The facts for a placement's commit, read once its GPUs are locked: of the GPUs and of the job.

Their text is built once.
"""

from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BindParameter,
    ColumnElement,
    Select,
    Text,
    any_,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql.psycopg import dialect

from muster.db.models import Attempt, Gpu, GpuHold, Job, Node, Quota, Reclaim, Tenant
from muster.db.queries.admission import (
    UNORDERED_FACTS_OF_FEW,
    GangColumns,
    anything_about,
    facts_of_gang,
    is_among,
    one_by_one,
)
from muster.db.queries.effective_standing import among
from muster.domain.states import Standing

_BETWEEN_GPUS: Final[ColumnElement[str]] = literal_column(r"E'\x1f'")
_BETWEEN_HOSTS: Final[ColumnElement[str]] = literal_column(r"E'\x1e'")


def _joined(name: str, separator: ColumnElement[str] = _BETWEEN_GPUS) -> Any:
    return func.string_to_array(bindparam(name, type_=Text), separator, type_=ARRAY(Text))


def _array(name: str) -> Any:
    """Through a subquery the planner takes the array to be as long in a plan for these parameters as in one for any,
    and so keeps the latter: to plan a query of this size again takes three times as long as to run it.
    """
    return func.array(select(func.unnest(_joined(name))).scalar_subquery())


_JOB_ID: Final[BindParameter[str]] = bindparam("job_id", type_=Text)
_GPUS: Final = select(func.unnest(_joined("uuids")))
_GANG: Final = GangColumns(select(func.unnest(_joined("nodes"))), _GPUS)
_PARTS: Final = (
    func.unnest(_joined("nodes"), _joined("uuids_by_host", _BETWEEN_HOSTS))
    .table_valued("node_id", "uuids", name="part")
    .render_derived()
)
_PLANNED: Final = among(
    select(func.unnest(func.string_to_array(_PARTS.c.uuids, _BETWEEN_GPUS)), _PARTS.c.node_id), Gpu.uuid, Gpu.node_id
)
_SINCE: Final = case((Gpu.standing == literal_column(f"'{Standing.PROBATION.value}'"), Gpu.standing_since))
_FOR_OTHERS: Final = select(GpuHold.gpu_uuid).where(GpuHold.job_id != _JOB_ID)
_OF_JOB: Final = (
    select(Node.address).where(Node.id == bindparam("first_node", type_=Text)).scalar_subquery().label("address"),
    exists()
    .where(
        Job.id == _JOB_ID,
        Tenant.id == Job.tenant_id,
        Quota.tier == Job.tier,
        or_(Quota.tenant_id == Tenant.id, Tenant.parent_id.is_not(None)),
    )
    .correlate(None)
    .label("has_ceiling"),
    exists().where(Tenant.residency.is_not(None)).correlate(None).label("has_residency"),
    select(func.max(Attempt.number)).where(Attempt.job_id == _JOB_ID).scalar_subquery().label("last_number"),
    or_(
        exists().where(Reclaim.beneficiary_job_id == _JOB_ID, Reclaim.hold_ended_at.is_(None)),
        exists().where(GpuHold.job_id == _JOB_ID).correlate(None),
    ).label("has_holds"),
)
_APART: Final = ("uuid", "node_id", "slot_index", "standing_since", "rack")
"""Columns in which GPUs differ that are alike to admission; ``standing_since`` counts in a probation alone."""


def _text(query: Select[*tuple[Any, ...]]) -> str:
    return str(query.compile(dialect=dialect()))  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it untyped


def _kinds(facts: Select[*tuple[Any, ...]], is_on_hold: ColumnElement[bool]) -> str:
    """Return the query of kinds: GPUs that admission cannot distinguish, with their number and one of them.

    Each row also has what is asked of the job (``_OF_JOB``).
    """
    told = [each for each in facts.selected_columns if each.key not in _APART]
    one = facts.with_only_columns(
        Gpu.uuid, *told, _SINCE.label("standing_since"), is_on_hold.label("is_on_hold")
    ).where(_PLANNED)
    uuid, *kind = one.subquery("one").columns
    kinds = select(func.min(uuid).label("uuid"), func.count().label("num_gpus"), *kind).group_by(*kind).subquery("kind")
    return _text(select(kinds, *_OF_JOB))


KINDS_OF_FEW: Final = _kinds(
    UNORDERED_FACTS_OF_FEW.where(Gpu.uuid == any_(_array("uuids"))),
    one_by_one(_FOR_OTHERS.where(GpuHold.gpu_uuid == Gpu.uuid)),
)
KINDS_OF_GANG: Final = _kinds(facts_of_gang(_array("nodes"), _array("uuids")), among(_FOR_OTHERS, Gpu.uuid))
ARE_ALL_REPORTED: Final = _text(
    select(
        not_(
            or_(anything_about(_GANG), exists().where(GpuHold.job_id != _JOB_ID, is_among(GpuHold.gpu_uuid, _GPUS)))
        ).label("is_all_told"),
        *_OF_JOB,
    )
)
"""Query for whether the rows of the GPUs state all that admission needs, except for holders.

A second holder refuses the write. Mostly they do, and then the commit need not read them again.
"""
