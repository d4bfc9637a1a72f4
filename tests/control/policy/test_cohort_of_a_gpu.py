"""Which GPUs may be mixed is the policy's word, written down when a GPU is enrolled."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.policy import policies
from muster.db.models import AuditEntry, Event, Gpu, GpuStandingChange, PolicyVersion
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.health import CohortPolicy, HealthPolicy
from tests.fleet_factory import OPERATOR

MODEL_ALONE = DEFAULT_POLICY.model_copy(update={"health": HealthPolicy(cohort=CohortPolicy(attributes=("model",)))})


def _gpu(index: int, driver_version: str) -> inventory.GpuInventory:
    return inventory.GpuInventory(
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
    with units.begin(OPERATOR, inventory.ENROL) as unit:
        inventory.enrol_node(unit, "gpu-01", [_gpu(0, "570"), _gpu(1, "580"), _gpu(2, "570")], address="10.0.0.1")
    with units.read() as session:
        keys = session.scalars(select(Gpu.cohort_key).order_by(Gpu.slot_index)).all()
    assert keys[0] == keys[2]
    assert len(set(keys)) == num_cohorts


def _keys(units: UnitOfWorkFactory) -> list[str]:
    with units.read() as session:
        return list(session.scalars(select(Gpu.cohort_key).order_by(Gpu.slot_index)))


def _store(units: UnitOfWorkFactory, policy: Policy) -> None:
    with units.begin(OPERATOR, policies.ACTIVATE) as unit:
        policies.store_policy(unit, policy, reason="finer cohorts")


def _enrol(units: UnitOfWorkFactory) -> None:
    with units.begin(OPERATOR, inventory.ENROL) as unit:
        inventory.enrol_node(unit, "gpu-01", [_gpu(0, "570"), _gpu(1, "580"), _gpu(2, "570")], address="10.0.0.1")


def _traces(units: UnitOfWorkFactory) -> tuple[list[Event], list[AuditEntry]]:
    with units.read() as session:
        events = session.scalars(select(Event).where(Event.kind == "policy.cohorts_rekeyed").order_by(Event.at)).all()
        entries = session.scalars(select(AuditEntry).where(AuditEntry.action == "policy.rekey_cohorts")).all()
        return list(events), list(entries)


def test_a_policy_with_other_attributes_moves_enrolled_gpus_to_its_cohorts(units: UnitOfWorkFactory) -> None:
    _enrol(units)
    apart = _keys(units)
    _store(units, MODEL_ALONE)
    assert _keys(units) == ["model=H100"] * 3
    _store(units, DEFAULT_POLICY)
    assert _keys(units) == apart
    events, entries = _traces(units)
    assert [event.payload["num_gpus"] for event in events] == [3, 3]
    assert {entry.reason for entry in entries} == {"finer cohorts"}
    with units.read() as session:
        assert set(session.scalars(select(Gpu.version))) == {3}, "an earlier reader can see that the GPU changed"


def test_a_policy_with_the_same_attributes_touches_no_gpu(units: UnitOfWorkFactory) -> None:
    _enrol(units)
    turned = CohortPolicy(attributes=tuple(reversed(CohortPolicy().attributes)))
    _store(units, DEFAULT_POLICY.model_copy(update={"health": HealthPolicy(cohort=turned)}))
    assert _traces(units) == ([], [])
    with units.read() as session:
        assert set(session.scalars(select(Gpu.version))) == {1}


def test_gpus_enrolled_while_a_policy_becomes_active_are_of_its_cohorts(units: UnitOfWorkFactory) -> None:
    with ThreadPoolExecutor(1) as pool:
        with units.begin(OPERATOR, inventory.ENROL) as unit:
            inventory.enrol_node(unit, "gpu-01", [_gpu(0, "570")], address="10.0.0.1")
            storing = pool.submit(_store, units, MODEL_ALONE)
            with pytest.raises(TimeoutError):
                storing.result(timeout=1.0)
        storing.result(timeout=100)
    assert _keys(units) == ["model=H100"]


def test_what_holds_a_gpu_may_name_the_policy_that_another_is_replacing(units: UnitOfWorkFactory) -> None:
    _enrol(units)
    _store(units, DEFAULT_POLICY)
    with ThreadPoolExecutor(1) as pool:
        with units.begin(OPERATOR, inventory.OVERRIDE) as unit:
            gpu = unit.session.get_one(Gpu, "GPU-0", with_for_update={"key_share": True})
            storing = pool.submit(_store, units, MODEL_ALONE)
            with pytest.raises(TimeoutError):
                storing.result(timeout=1.0)
            active = unit.session.scalar(select(PolicyVersion.version).where(PolicyVersion.is_active))
            unit.session.add(
                GpuStandingChange(
                    gpu_uuid=gpu.uuid,
                    target=gpu.standing,
                    at=unit.now,
                    reason="test",
                    actor="test",
                    policy_version=active,
                )
            )
            unit.audit("gpu.override", "gpu", gpu.uuid)
        storing.result(timeout=100)
    assert _keys(units) == ["model=H100"] * 3
