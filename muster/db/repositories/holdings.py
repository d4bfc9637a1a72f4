"""Who has a GPU, and who had it: what is held and what is over stand in an index each, and a query has to say which.

States stand in these as constants, as ``admission`` says why.
"""

from typing import Final

from sqlalchemy import literal_column, or_

from muster.db.models import AllocationGpu
from muster.domain.states import AllocationState

HELD_ONCE: Final = "uq_allocation_gpus_taken"
"""The index that refuses a second holder (I1)."""
IS_TAKEN: Final = AllocationGpu.state.in_(
    literal_column(f"'{state.value}'") for state in (AllocationState.HELD, AllocationState.CLEANING)
)
"""It is held, or still being cleaned."""
IS_OR_WAS_TAKEN: Final = or_(IS_TAKEN, AllocationGpu.state == literal_column(f"'{AllocationState.RELEASED.value}'"))
"""True of every row. Beside a GPU's UUID it finds the GPU's rows in both indexes; without it, in neither."""
