"""The present and past holders of a GPU: each has an index of its own, and a query has to name one of them.

States are constants in these, for the reason that ``admission`` gives.
"""

from typing import Final

from sqlalchemy import literal_column, or_, select

from muster.db.models import Allocation, AllocationGpu
from muster.db.stored_values import stored_value
from muster.domain.states import AllocationState

ASSIGNED_ONCE: Final = "uq_allocation_gpus_taken"
"""The index that refuses a second holder (I1)."""
IS_ASSIGNED: Final = AllocationGpu.state.in_(
    literal_column(f"'{stored_value(state)}'") for state in (AllocationState.ASSIGNED, AllocationState.CLEANING)
)
"""It is held, or still being cleaned."""
IS_OR_WAS_ASSIGNED: Final = or_(
    IS_ASSIGNED, AllocationGpu.state == literal_column(f"'{stored_value(AllocationState.RELEASED)}'")
)
"""True of every row. With a GPU's UUID it finds the GPU's rows in both indexes; without it, in neither."""
HOLDERS: Final = (
    select(AllocationGpu.gpu_uuid, Allocation.tenant_id)
    .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
    .where(IS_ASSIGNED)
    .subquery("h")
)
"""The tenant that has each assigned GPU. They are few compared with GPUs: a query of the fleet reads them once."""
