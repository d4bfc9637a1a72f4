"""The effective standing of a GPU as columns of ``gpus``, and whether it is cordoned: for counts and filters.

``muster.domain.gpu.effective_standing`` is the definition; a test holds the two equal. The overrides and cordons in
force are few: each list is read once for all GPUs.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
)
from sqlalchemy.orm import InstrumentedAttribute

from muster.db.base import EnumText, UtcTimestamp
from muster.db.models import Cordon, Gpu, GpuOverride
from muster.db.stored_values import stored_value
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Standing

Now = ColumnElement[datetime] | datetime
"""An instant, or the parameter of a query that is built once."""


def effective_standing(now: Now) -> ColumnElement[Standing]:
    """Return the standing by which admission treats the GPU."""
    out: list[ColumnElement[Any]] = [literal_column(f"'{stored_value(standing)}'") for standing in OUT_OF_SERVICE]
    set_by_person = case((Gpu.standing.not_in(out), override_in_force(now)))
    return type_coerce(func.coalesce(set_by_person, Gpu.standing), EnumText(Standing))


def override_in_force(now: Now) -> ColumnElement[Any]:
    """Return the newest standing in force that a person has set for the GPU, or NULL; for many GPUs."""
    overridden = select(GpuOverride.gpu_uuid).where(*override_stands(now))
    return case((among(overridden, Gpu.uuid), newest_override(now)))


def newest_override(now: Now) -> ScalarSelect[Any]:
    """Return the same, searched for each GPU; for few GPUs."""
    of_gpu = select(GpuOverride.standing).where(GpuOverride.gpu_uuid == Gpu.uuid, *override_stands(now))
    return of_gpu.order_by(GpuOverride.created_at.desc()).limit(literal_column("1")).scalar_subquery()


def is_cordoned(now: Now) -> ColumnElement[bool]:
    """Return whether a cordon of the GPU or of its node keeps it out of new placements."""
    nodes = select(Cordon.node_id).where(Cordon.node_id.is_not(None), *cordon_stands(now))
    return or_(among(nodes, Gpu.node_id), has_own_cordon(now))


def has_own_cordon(now: Now) -> ColumnElement[bool]:
    gpus = select(Cordon.gpu_uuid).where(Cordon.gpu_uuid.is_not(None), *cordon_stands(now))
    return among(gpus, Gpu.uuid)


def override_stands(now: Now) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on an override in force."""
    return GpuOverride.ended_at.is_(None), GpuOverride.until > _moment(now)


def cordon_stands(now: Now) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on a cordon in force."""
    moment = _moment(now)
    return (
        Cordon.released_at.is_(None),
        or_(Cordon.until.is_(None), Cordon.until > moment),
        or_(Cordon.starts_at.is_(None), Cordon.starts_at <= moment),
    )


def among(query: Select[*tuple[Any, ...]], *columns: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Return whether ``query`` finds a GPU's own ``columns``, in a result that is read once.

    IS TRUE keeps the planner from making a join of it, and so a look-up for each row.
    """
    is_found: ColumnElement[bool] = tuple_(*columns).in_(query).is_(true())
    return is_found


def _moment(now: Now) -> ColumnElement[datetime]:
    return literal(now, UtcTimestamp()) if isinstance(now, datetime) else now
