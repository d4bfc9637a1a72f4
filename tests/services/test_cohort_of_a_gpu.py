"""Which GPUs may be mixed is the policy's word, written down when a GPU is enrolled."""

import pytest
from sqlalchemy import select

from muster.db.models import Gpu
from muster.domain.health_policy import CohortPolicy, HealthPolicy
from muster.domain.ids import GpuUuid
from muster.domain.policy import DEFAULT_POLICY, Policy
from muster.services import fleet, policies
from muster.services.unit_of_work import UnitOfWorkFactory
from tests.fleet_factory import OPERATOR

MODEL_ALONE = DEFAULT_POLICY.model_copy(update={"health": HealthPolicy(cohort=CohortPolicy(attributes=("model",)))})


def _gpu(index: int, driver_version: str) -> fleet.GpuInventory:
    return fleet.GpuInventory(
        uuid=GpuUuid(f"GPU-{index}"),
        slot_index=index,
        model="H100",
        memory_bytes=80 << 30,
        compute_capability="9.0",
        driver_version=driver_version,
    )


@pytest.mark.parametrize(("policy", "num_cohorts"), [(DEFAULT_POLICY, 2), (MODEL_ALONE, 1)])
def test_gpus_are_of_one_cohort_when_the_policys_attributes_are_equal(
    units: UnitOfWorkFactory, policy: Policy, num_cohorts: int
) -> None:
    with units.begin(OPERATOR, policies.ACTIVATE) as unit:
        policies.store_policy(unit, policy, reason="test")
    with units.begin(OPERATOR, fleet.ENROL) as unit:
        fleet.enrol_node(unit, "gpu-01", [_gpu(0, "570"), _gpu(1, "580"), _gpu(2, "570")], address="10.0.0.1")
    with units.read() as session:
        keys = session.scalars(select(Gpu.cohort_key).order_by(Gpu.slot_index)).all()
    assert keys[0] == keys[2]
    assert len(set(keys)) == num_cohorts
