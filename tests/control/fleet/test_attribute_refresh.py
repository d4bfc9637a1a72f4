"""What a GPU's agent reports after enrolment stands in its row, and its cohort follows."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.fleet.attribute_refresh import REFRESH, refresh_attributes_once
from control.fleet.drift import drift_report, nic_rates_of_nodes
from control.policy import policies
from control.policy.cohorts import attributes_of_gpu
from health.cohort.cohorts import attributes_of, cohort_key
from muster.db.models import AuditEntry, Event, Gpu
from muster.domain.evidence.state_readings import HOST_READING_TEXTS, words_text
from muster.domain.gpu.cohort_attributes import LINKS
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.health import CohortPolicy, HealthPolicy
from muster.domain.principals import system_principal
from tests.fleet_factory import OPERATOR, enrol_host
from tests.stored_signals import add_signal

KEEPER = system_principal("reconciler")
STATE = {"power_limit_w": 700.0, "nvlink_links": 18.0}


def report(
    units: UnitOfWorkFactory, *uuids: str, vbios: str, state: dict[str, float] | None = None, minute: int = 0
) -> None:
    with units.begin(KEEPER, inventory.READ, quiet=True) as unit:
        for uuid in uuids:
            text = words_text({"vbios_version": vbios, "cuda_version": "12.8"})
            at = unit.now + timedelta(minutes=minute)
            add_signal(unit, GpuUuid(uuid), kind="gpu_state", code=None, at=at, text=text, values=state or STATE)


def gpus(units: UnitOfWorkFactory) -> dict[str, Gpu]:
    with units.read() as session:
        return {gpu.uuid: gpu for gpu in session.scalars(select(Gpu))}


def keys(units: UnitOfWorkFactory) -> set[str]:
    return {gpu.cohort_key for gpu in gpus(units).values()}


def test_what_a_host_states_in_words_is_of_all_its_gpus_and_drifts(units: UnitOfWorkFactory) -> None:
    nodes = {name: enrol_host(units, name, num_gpus=2) for name in ("alpha", "beta", "gamma")}
    with units.begin(KEEPER, inventory.READ, quiet=True) as unit:
        for name, firmware in (("alpha", "28.39.1002"), ("beta", "28.39.1002"), ("gamma", "28.40.1000")):
            text = words_text({"nic_firmware": firmware, "kernel_release": "6.8.0"}, HOST_READING_TEXTS)
            add_signal(
                unit, None, kind="host_state", code=None, source="host", signal_id=name, node_id=nodes[name], text=text
            )
    assert refresh_attributes_once(units, KEEPER) == 6
    assert gpus(units)[GpuUuid("GPU-gamma-1")].attributes == {"nic_firmware": "28.40.1000", "kernel_release": "6.8.0"}
    with units.begin(OPERATOR, inventory.READ, quiet=True) as unit:
        (drift,) = drift_report(unit).drifts
    assert (drift.attribute, drift.majority, drift.num_nodes) == ("nic_firmware", "28.39.1002", 3)
    assert [(other.value, other.nodes) for other in drift.others] == [("28.40.1000", (nodes["gamma"],))]


def test_what_an_agent_reports_is_kept_once_with_an_event_that_states_what_it_was_before(
    units: UnitOfWorkFactory,
) -> None:
    enrol_host(units, "alpha", num_gpus=2)
    assert refresh_attributes_once(units, KEEPER) == 0
    report(units, "GPU-alpha-0", "GPU-alpha-1", vbios="96.01")
    assert refresh_attributes_once(units, KEEPER) == 2
    assert refresh_attributes_once(units, KEEPER) == 0, "once"
    expected = {"vbios_version": "96.01", "cuda_version": "12.8", "power_limit_w": "700", "nvlink_links": "18"}
    assert [gpu.attributes for gpu in gpus(units).values()] == [expected] * 2
    (key,) = keys(units)
    assert "cuda_version=12.8" in key
    assert "vbios_version=96.01" in key
    report(units, "GPU-alpha-1", vbios="96.02", minute=1)
    assert refresh_attributes_once(units, KEEPER) == 1
    with units.read() as session:
        events = session.scalars(select(Event).where(Event.kind == "gpu.attributes_changed").order_by(Event.at)).all()
    assert events[-1].subject_id == "GPU-alpha-1"
    assert events[-1].payload == {"before": {"vbios_version": "96.01"}, "after": {"vbios_version": "96.02"}}
    assert len(keys(units)) == 2


def test_hosts_whose_agents_report_nothing_split_no_fleet_that_is_alike(units: UnitOfWorkFactory) -> None:
    enrol_host(units, "old", num_gpus=2)
    enrol_host(units, "new", num_gpus=1)
    report(units, "GPU-new-0", vbios="96.01")
    refresh_attributes_once(units, KEEPER)
    assert len(keys(units)) == 1, "presumed to be as all that report it"
    enrol_host(units, "late", num_gpus=1)
    assert len(keys(units)) == 1, "one that enrols too, before its agent has reported anything"
    report(units, "GPU-late-0", vbios="96.02")
    refresh_attributes_once(units, KEEPER)
    found = gpus(units)
    assert len(keys(units)) == 3, "where the reporting GPUs differ, nothing can be presumed"
    assert "vbios_version=-" in found["GPU-old-0"].cohort_key
    assert found["GPU-old-0"].cohort_key == found["GPU-old-1"].cohort_key


def test_what_no_cohort_requests_moves_no_gpu_to_another(units: UnitOfWorkFactory) -> None:
    enrol_host(units, "alpha", num_gpus=1)
    report(units, "GPU-alpha-0", vbios="96.01")
    refresh_attributes_once(units, KEEPER)
    before = gpus(units)["GPU-alpha-0"]
    report(units, "GPU-alpha-0", vbios="96.01", state={**STATE, "power_limit_w": 650.0}, minute=1)
    assert refresh_attributes_once(units, KEEPER) == 1
    after = gpus(units)["GPU-alpha-0"]
    assert (after.attributes["power_limit_w"], after.cohort_key) == ("650", before.cohort_key)


def test_a_policy_may_request_whatever_is_reported(units: UnitOfWorkFactory) -> None:
    enrol_host(units, "alpha", num_gpus=2)
    report(units, "GPU-alpha-0", vbios="96.01")
    report(units, "GPU-alpha-1", vbios="96.01", state={**STATE, "power_limit_w": 650.0})
    refresh_attributes_once(units, KEEPER)
    assert len(keys(units)) == 1
    asks = HealthPolicy(cohort=CohortPolicy(attributes=("model", "power_limit_w")))
    with units.begin(OPERATOR, policies.ACTIVATE) as unit:
        policies.store_policy(unit, DEFAULT_POLICY.model_copy(update={"health": asks}), reason="power matters")
    assert {key.partition("|power_limit_w=")[2] for key in keys(units)} == {"700", "650"}


OF_0_1_0 = ("model", "memory_bytes", "compute_capability", "driver_version", "cuda_version", "vbios_version")


def keys_of_0_1_0(units: UnitOfWorkFactory) -> None:
    """The keys as release 0.1.0 wrote them, under its built-in policy: none is stored."""
    with units.begin(KEEPER, REFRESH, quiet=True) as unit:
        for gpu in unit.session.scalars(select(Gpu)):
            gpu.cohort_key = cohort_key(attributes_of_gpu(gpu), CohortPolicy(attributes=OF_0_1_0))


def rekeyed(units: UnitOfWorkFactory) -> list[dict[str, Any]]:
    with units.read() as session:
        found = session.scalars(select(Event).where(Event.kind == "policy.cohorts_rekeyed").order_by(Event.at))
        return [event.payload for event in found]


def test_an_upgrade_writes_all_keys_at_once_with_an_event_and_splits_no_fleet_that_is_alike(
    units: UnitOfWorkFactory,
) -> None:
    """Some hosts report their links and others do not, as agents of 0.1.0 on boards without them."""
    enrol_host(units, "alpha", num_gpus=2)
    enrol_host(units, "silent", num_gpus=2)
    report(units, "GPU-alpha-0", "GPU-alpha-1", vbios="96.01")
    refresh_attributes_once(units, KEEPER)
    keys_of_0_1_0(units)
    assert refresh_attributes_once(units, KEEPER) == 0
    (key,) = keys(units)
    assert set(attributes_of(key)) == {*OF_0_1_0, *LINKS}
    assert [(each["num_gpus"], each["num_cohorts"]) for each in rekeyed(units)] == [(4, 1)]
    refresh_attributes_once(units, KEEPER)
    assert len(rekeyed(units)) == 1, "once"


def test_where_links_differ_a_host_that_reports_none_stays_with_most(units: UnitOfWorkFactory) -> None:
    for name in ("alpha", "beta", "narrow", "silent"):
        enrol_host(units, name, num_gpus=1)
    report(units, "GPU-alpha-0", "GPU-beta-0", vbios="96.01", state={"pcie_max_generation": 5.0})
    report(units, "GPU-narrow-0", vbios="96.01", state={"pcie_max_generation": 4.0})
    refresh_attributes_once(units, KEEPER)
    found = {uuid: gpu.cohort_key for uuid, gpu in gpus(units).items()}
    assert found[GpuUuid("GPU-silent-0")] == found[GpuUuid("GPU-alpha-0")] == found[GpuUuid("GPU-beta-0")]
    assert found[GpuUuid("GPU-narrow-0")] != found[GpuUuid("GPU-alpha-0")]


def test_a_stored_policy_of_0_1_0_keeps_its_own_list(units: UnitOfWorkFactory) -> None:
    own = HealthPolicy(cohort=CohortPolicy(attributes=OF_0_1_0))
    with units.begin(OPERATOR, policies.ACTIVATE) as unit:
        policies.store_policy(unit, DEFAULT_POLICY.model_copy(update={"health": own}), reason="as 0.1.0 stored it")
    enrol_host(units, "alpha", num_gpus=1)
    refresh_attributes_once(units, KEEPER)
    (key,) = keys(units)
    assert set(attributes_of(key)) == set(OF_0_1_0)
    assert [each["version"] for each in rekeyed(units)] == [1], "as it was activated, and no more"
    with units.begin(KEEPER, REFRESH, quiet=True) as unit:
        unit.session.execute(update(Gpu).values(cohort_key=Gpu.cohort_key + "|ecc_enabled=1"))
    refresh_attributes_once(units, KEEPER)
    assert keys(units) == {key}
    with units.read() as session:
        written = session.scalars(
            select(AuditEntry).where(AuditEntry.action == "policy.rekey_cohorts").order_by(AuditEntry.at)
        ).all()
    assert (written[-1].subject_id, written[-1].reason) == ("1", "keys have other attributes than the active policy")


@pytest.mark.parametrize(
    ("ports", "rate"),
    [
        ([400.0, 400.0, 100.0], "400 Gb/s InfiniBand"),
        ([400.0, 0.0], "400 Gb/s InfiniBand"),
        ([0.0], None),
        ([], None),
    ],
)
def test_the_rate_of_a_nodes_cards_is_the_best_of_its_ports(ports: list[float], rate: str | None) -> None:
    node = NodeId("node_1")
    found = nic_rates_of_nodes((node, {"rate_gbps": each, "is_ethernet": 0.0}) for each in ports)
    assert found.get(node) == rate


def test_a_port_that_is_down_has_no_rate_and_with_the_last_one_the_cohort_stays(units: UnitOfWorkFactory) -> None:
    """A port of InfiniBand that is down states 10 Gb/s."""
    node_id = enrol_host(units, "alpha", num_gpus=1)
    for minute, states in enumerate([(4.0, 4.0), (1.0, 4.0), (1.0, 1.0)]):
        with units.begin(KEEPER, inventory.READ, quiet=True) as unit:
            for port, state in enumerate(states):
                add_signal(
                    unit,
                    None,
                    kind="port_state",
                    code=None,
                    source="host",
                    signal_id=f"{minute}/{port}",
                    node_id=node_id,
                    at=unit.now + timedelta(minutes=minute),
                    text=f"mlx5_{port}/1",
                    values={"state": state, "rate_gbps": 400.0 if state == 4.0 else 10.0},
                )
        refresh_attributes_once(units, KEEPER)
        (gpu,) = gpus(units).values()
        assert gpu.attributes["nic_rate"] == "400 Gb/s InfiniBand"
