"""Driver upgrades after enrolment: the rows of a host's GPUs, and so their cohorts, follow its agent's report."""

from typing import Final

from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWorkFactory, declare_action, retrying
from control.policy.cohorts import attributes_of_gpu, hold_policy, keying
from control.policy.policies import active_policy
from muster.db.models import Gpu, NodeLatest
from muster.domain.ids import GpuUuid
from muster.domain.principals import Permission, Principal

REFRESH: Final = declare_action("gpu.refresh_driver")
BATCH: Final = 1000


def refresh_drivers_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Store the driver that a node's agent reports, where the rows of its GPUs name another one.

    The host was upgraded since it enrolled. The GPUs' cohort follows; a running gang keeps its GPUs. Return how many
    GPUs changed.
    """
    told = func.jsonb_extract_path_text(NodeLatest.readings, "driver_version")
    stale = (
        select(Gpu.uuid, told)
        .join(NodeLatest, NodeLatest.node_id == Gpu.node_id)
        .where(told != "", told != Gpu.driver_version)
        .order_by(Gpu.uuid)
        .limit(BATCH)
    )

    def once() -> int:
        with units.begin(principal, REFRESH, quiet=True) as unit:
            unit.principal.require(Permission.SYSTEM_RUN)
            if not unit.session.execute(stale.limit(1)).first():
                return 0
            hold_policy(unit.session)
            key_of = keying(unit.session, active_policy(unit.session).health.cohort)
            found = unit.session.execute(stale.with_for_update(of=Gpu, key_share=True)).all()
            drivers: dict[GpuUuid, str] = {row[0]: row[1] for row in found}
            for gpu in unit.session.scalars(select(Gpu).where(Gpu.uuid.in_(drivers)).order_by(Gpu.uuid)):
                before, gpu.driver_version = gpu.driver_version, drivers[gpu.uuid]
                gpu.cohort_key = key_of(attributes_of_gpu(gpu))
                detail = {"before": before, "driver_version": gpu.driver_version, "cohort_key": gpu.cohort_key}
                unit.emit("gpu.driver_changed", "gpu", gpu.uuid, payload=detail)
            return len(drivers)

    return retrying(once)
