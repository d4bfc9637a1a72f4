"""What admission asks of each GPU, in topology order: one query, a row a GPU, built once.

States stand in it as constants, never as parameters: only then does a plan that PostgreSQL keeps use the partial
indexes. With parameters it plans the query anew each time, which takes longer than the query.
"""

from typing import Final

from sqlalchemy import Select, bindparam, exists, literal_column, or_, select

from muster.db.base import UtcTimestamp
from muster.db.models import AllocationGpu, BurnIn, Cordon, Gpu, GpuOverride, Node
from muster.domain.states import AllocationState, BurnInState

_NOW: Final = bindparam("now", type_=UtcTimestamp())
_TAKEN: Final = (AllocationState.HELD, AllocationState.CLEANING)
_HELD: Final = exists().where(
    AllocationGpu.gpu_uuid == Gpu.uuid,
    AllocationGpu.state.in_(literal_column(f"'{state.value}'") for state in _TAKEN),
)
_BURNING_IN: Final = exists().where(
    BurnIn.gpu_uuid == Gpu.uuid, BurnIn.state == literal_column(f"'{BurnInState.RUNNING.value}'")
)
_CORDONED: Final = exists().where(
    or_(Cordon.node_id == Gpu.node_id, Cordon.gpu_uuid == Gpu.uuid),
    Cordon.released_at.is_(None),
    or_(Cordon.until.is_(None), Cordon.until > _NOW),
)
_OVERRIDE: Final = (
    select(GpuOverride.standing)
    .where(GpuOverride.gpu_uuid == Gpu.uuid, GpuOverride.ended_at.is_(None), GpuOverride.until > _NOW)
    .order_by(GpuOverride.created_at.desc())
    .limit(literal_column("1"))
    .scalar_subquery()
)

FACTS: Final[Select[*tuple[object, ...]]] = (
    select(
        Gpu.uuid,
        Gpu.node_id,
        Gpu.slot_index,
        Gpu.cohort_key,
        Gpu.standing,
        Gpu.is_mig_enabled,
        Node.contact,
        Node.rack,
        _HELD.label("is_held"),
        _CORDONED.label("is_cordoned"),
        _OVERRIDE.label("override"),
        _BURNING_IN.label("is_burning_in"),
    )
    .join(Node, Node.id == Gpu.node_id)
    .order_by(Node.rack, Gpu.node_id, Gpu.slot_index)
)
"""Takes the instant ``now``, at which cordons and overrides are in force."""
