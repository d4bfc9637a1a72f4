"""The cohort that stands in a GPU's row: by the attributes of the active policy, whenever it was enrolled."""

from typing import Final

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from health.cohorts import cohort_key
from muster.db.models import Gpu
from muster.domain.health_policy import CohortPolicy

ATTRIBUTES: Final = ("model", "memory_bytes", "compute_capability", "driver_version")
"""What a GPU's row knows; what a policy asks beyond that is not known of any."""


def hold_policy(session: Session) -> None:
    """No other policy becomes active until this transaction ends: one that did would not see GPUs enrolled here."""
    session.execute(text("LOCK TABLE policy_versions IN SHARE MODE"))


def rekey(session: Session, policy: CohortPolicy) -> int:
    """Write the key of each GPU anew. Returns how many changed. The caller has stored the policy already."""
    every = select(Gpu.uuid).order_by(Gpu.uuid).with_for_update(key_share=True).subquery()
    session.execute(select(func.count()).select_from(every))
    columns = [getattr(Gpu, name) for name in ATTRIBUTES]
    num_changed = 0
    for values in session.execute(select(*columns).distinct()).all():
        key = cohort_key(dict(zip(ATTRIBUTES, values, strict=True)), policy)
        alike = [column == value for column, value in zip(columns, values, strict=True)]
        changed = (
            update(Gpu)
            .where(*alike, Gpu.cohort_key != key)
            .values(cohort_key=key, version=Gpu.version + 1)
            .execution_options(synchronize_session=False)
        )
        num_changed += session.execute(changed).rowcount  # type: ignore[attr-defined]  # a cursor's result
    return num_changed
