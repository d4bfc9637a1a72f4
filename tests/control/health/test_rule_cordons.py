"""Faults of a node hold the node, as long as they stand; no GPU is quarantined, and a person's word outlives them."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from control.fleet import cordons, maintenance
from control.health import interventions
from control.health.interventions import START_REPAIR, start_repair
from control.health.rule_cordons import REASON_CODE, hold_nodes_once
from control.hosts import drains
from control.policy.policies import ACTIVATE, active_policy, store_policy
from muster.db.models import Cordon, EvidenceRow, Gpu
from muster.domain.evidence.repairs import RepairAction
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import Policy
from muster.domain.states import Standing
from tests.control.health.conftest import GPU, JUDGE, OTHER, UNLIMITED, Court, sample
from tests.fleet_factory import OPERATOR

PORT = "mlx5_0/1"
RATES = {"link_downed": 1.0, "window_s": 60.0}


def receive_of(court: Court, name: str, kind: str, values: dict[str, float], *, text: str = "") -> None:
    court.signal(name, None, kind=kind, code=None, source="host", text=text, values=values)
    court.judge()


def port(court: Court, name: str, state: float) -> None:
    receive_of(court, name, "port_state", {"state": state, "was_active": 1.0}, text=PORT)


def holds(court: Court) -> list[Cordon]:
    return [each for each in court.rows(Cordon) if each.reason_code == REASON_CODE and each.released_at is None]


def hold(court: Court) -> int:
    return hold_nodes_once(court.units, JUDGE)


def with_policy(court: Court, **health: Any) -> None:
    document = {"health": {"breaker": UNLIMITED, **health}}
    with court.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy.model_validate(document), reason="test")


def standings(court: Court) -> set[Standing]:
    with court.units.read() as session:
        return set(session.scalars(select(Gpu.standing)))


def test_a_port_that_stays_down_holds_its_node_until_it_is_up_and_no_gpu_falls(court: Court) -> None:
    port(court, "down", 1.0)
    assert hold(court) == 0, "it may come back"
    court.clock.advance(240)
    assert hold(court) == 0, "its host is silent, and reports no end"
    court.beat()
    assert hold(court) == 1
    (cordon,) = holds(court)
    assert (cordon.node_id, cordon.gpu_uuid, cordon.reason) == (court.node_id, None, f"port {PORT} is down")
    assert hold(court) == 0, "one hold is enough"
    port(court, "up", 4.0)
    assert hold(court) == 1
    assert holds(court) == []
    assert standings(court) == {Standing.HEALTHY}
    kinds = [event.kind for event in court.events("node.cordoned") + court.events("node.uncordoned")]
    assert kinds == ["node.cordoned", "node.uncordoned"]


def test_a_port_that_is_up_in_time_holds_nothing(court: Court) -> None:
    port(court, "down", 1.0)
    court.clock.advance(239)
    port(court, "up", 4.0)
    court.clock.advance(3600)
    assert hold(court) == 0


def test_a_kept_node_takes_nothing_new(court: Court) -> None:
    court.fleet.beat()
    receive_of(court, "risen", "port_rates", RATES, text=PORT)
    hold(court)
    job = court.fleet.submit(shape={"nodes": 1, "gpus_per_node": 8})
    court.fleet.cycle()
    assert court.fleet.attempts(job) == []


def test_a_rate_holds_for_its_time_after_it_was_last_reported(court: Court) -> None:
    receive_of(court, "risen", "port_rates", RATES, text=PORT)
    assert hold(court) == 1
    court.clock.advance(1799)
    assert hold(court) == 0
    court.clock.advance(1)
    assert hold(court) == 1
    assert holds(court) == []


def test_a_persons_release_stands_until_something_later_comes_to_light(court: Court) -> None:
    receive_of(court, "fatal", "sxid", {}, text="Fatal, Link 32 egress error")
    court.signal("switch", None, kind="sxid", code=12028, source="kernel_log", text="Fatal, Link 32 egress error")
    court.judge()
    hold(court)
    (cordon,) = holds(court)
    court.clock.advance(1)
    with court.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordon.id, reason="the fabric was reset")
    assert hold(court) == 0
    assert holds(court) == []
    court.clock.advance(60)
    court.signal("again", None, kind="sxid", code=12028, source="kernel_log", text="Fatal, Link 32 egress error")
    court.judge()
    assert hold(court) == 1


def test_a_warning_about_a_node_holds_nothing(court: Court) -> None:
    receive_of(court, "slow", "host_state", {"cpu_pressure": 1.0})
    assert [key for key, _ in court.evidence()] == ["host_pressure:cpu"]
    assert hold(court) == 0


def test_a_rule_in_shadow_holds_nothing_and_states_why(court: Court) -> None:
    with_policy(court, detectors={"port_fatal": {"mode": "shadow"}})
    receive_of(court, "risen", "port_rates", RATES, text=PORT)
    (found,) = court.rows(EvidenceRow)
    assert found.suppressed_by == ["shadow"]
    assert hold(court) == 0


def test_a_gpus_fault_in_shadow_moves_nothing(court: Court) -> None:
    with_policy(court, detectors={"xid": {"mode": "shadow"}})
    court.signal("xid")
    court.judge()
    assert court.evidence() == [("xid:95", GPU)]
    assert court.standing() is Standing.HEALTHY


def test_while_a_node_is_drained_what_it_reports_of_itself_is_kept_and_weighs_nothing(court: Court) -> None:
    with court.units.begin(OPERATOR, drains.DRAIN) as unit:
        drains.drain(unit, court.node_id, reason="new cables", until=unit.now + timedelta(hours=1))
    receive_of(court, "risen", "port_rates", RATES, text=PORT)
    court.signal("ecc", code=95)
    court.judge()
    assert hold(court) == 0
    by_key = {row.fault_key: row.suppressed_by for row in court.rows(EvidenceRow)}
    assert "maintenance" in by_key[f"port_fatal:{PORT}"]
    assert court.standing() is Standing.QUARANTINED, "a GPU's own fault counts at any time"


def test_what_was_reported_in_a_drain_and_still_stands_weighs_when_the_drain_ends(court: Court) -> None:
    court.beat()
    with court.units.begin(OPERATOR, drains.DRAIN) as unit:
        drains.drain(unit, court.node_id, reason="new cables", until=unit.now + timedelta(seconds=1200))
    court.signal("links", kind="gpu_state", code=None, values={"nvlink_links": 18.0, "nvlink_links_down": 1.0})
    court.signal("xid", code=149)
    port(court, "down", 1.0)
    court.clock.advance(1199)
    court.beat()
    assert hold(court) == 0
    court.judge()
    assert court.standing() is Standing.HEALTHY
    court.clock.advance(1)
    court.beat()
    assert hold(court) == 1
    court.judge()
    assert court.standing() is Standing.SUSPECT, "a moment of the work never weighs, links that are still down do"


def test_links_that_stay_down_make_suspect_by_time_alone(court: Court) -> None:
    court.signal("links", kind="gpu_state", code=None, values={"nvlink_links": 18.0, "nvlink_links_down": 1.0})
    court.judge()
    assert court.standing() is Standing.HEALTHY
    court.clock.advance(301)
    court.beat()
    court.judge()
    assert court.standing() is Standing.SUSPECT


def test_links_of_a_host_that_went_silent_weigh_once_it_is_received_again(court: Court) -> None:
    court.beat()
    court.signal("links", kind="gpu_state", code=None, values={"nvlink_links": 18.0, "nvlink_links_down": 1.0})
    court.judge()
    court.clock.advance(301)
    court.judge()
    assert court.standing() is Standing.HEALTHY
    court.clock.advance(10)
    court.beat()
    court.judge()
    assert court.standing() is Standing.SUSPECT


def test_links_that_train_again_after_a_reboot_have_their_time_again(court: Court) -> None:
    down = {"nvlink_links": 18.0, "nvlink_links_down": 1.0}
    court.signal("boot-0:links", kind="gpu_state", code=None, values=down)
    court.judge()
    court.clock.advance(400)
    court.beat()
    court.judge()
    assert court.standing() is Standing.HEALTHY, "a report of the last boot is no report of this one"
    court.signal("boot-1:links", kind="gpu_state", code=None, values=down)
    court.judge()
    assert court.standing() is Standing.HEALTHY
    court.clock.advance(301)
    court.beat()
    court.judge()
    assert court.standing() is Standing.SUSPECT


@pytest.mark.parametrize(("worded", "standing"), [(True, Standing.HEALTHY), (False, Standing.QUARANTINED)])
def test_an_nvlinks_xid_waits_for_its_words(court: Court, worded: bool, standing: Standing) -> None:  # noqa: FBT001
    court.signal("bare", code=74)
    court.judge()
    assert court.standing() is Standing.HEALTHY
    if worded:
        court.clock.advance(1)
        text = "NVLink: fatal error detected on link 2(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
        court.signal("words", code=74, source="kernel_log", text=text)
        court.judge()
    court.clock.advance(11)
    court.beat()
    court.judge()
    assert court.standing() is standing


def test_off_the_bus_a_second_time_is_reported_as_such(court: Court) -> None:
    court.signal("first", code=79)
    court.judge()
    court.clock.advance(4 * 3600)
    court.signal("second", code=79)
    court.judge()
    assert ("bus_repeats:hold", GPU) in court.evidence()


def test_heat_is_judged_by_the_gpus_own_model(court: Court) -> None:
    """Heat that the strictest model would not bear ends the cordon where this model bears it."""
    with court.units.read() as session:
        limits = active_policy(session).health.detectors.temperature
    court.receive(sample(temperature_c=limits.strictest_gpu_c + 1))
    court.judge()
    assert court.evidence() == []
    court.receive(sample(temperature_c=limits.gpu_max_c + 1))
    court.judge()
    assert court.evidence() == [("temperature:gpu", GPU)]


def test_five_repairs_on_one_node_in_a_week_hold_the_node(court: Court) -> None:
    for number in range(5):
        court.clock.advance(25 * 3600)  # two of them at fault within a day would hold it before
        uuid = GpuUuid(f"GPU-many-{number}")
        court.signal(f"ecc-{number}", uuid, code=95)
        court.judge()
        assert hold(court) == 0
        with court.units.begin(OPERATOR, START_REPAIR) as unit:
            start_repair(unit, uuid, action=RepairAction.RESET, reason="as the rule says")
        court.judge()
    assert ("repair_repeats", None) in court.evidence()
    assert hold(court) == 1


def declare(court: Court, *, for_s: float) -> str:
    with court.units.begin(OPERATOR, maintenance.DECLARE) as unit:
        until = unit.now + timedelta(seconds=for_s)
        return maintenance.declare(unit, court.node_id, reason="new optics", until=until).id


def test_in_a_window_nothing_of_the_node_is_judged_and_all_of_it_is_kept(court: Court) -> None:
    declare(court, for_s=1200)
    court.signal("ecc", code=95)
    receive_of(court, "risen", "port_rates", RATES, text=PORT)
    assert hold(court) == 0
    assert standings(court) == {Standing.HEALTHY}
    assert all("maintenance" in row.suppressed_by for row in court.rows(EvidenceRow))
    assert {fault for fault, _ in court.evidence()} == {"xid:95", f"port_fatal:{PORT}"}
    court.clock.advance(1201)
    court.beat()
    hold(court)
    court.judge()
    assert standings(court) == {Standing.HEALTHY}, "a moment of the work never weighs"
    court.signal("ecc-again", code=95)
    court.judge()
    assert court.standing() is Standing.QUARANTINED


def test_what_a_host_reports_late_of_the_time_of_its_window_weighs_nothing(court: Court) -> None:
    cordon_id = declare(court, for_s=1200)
    at = court.clock.now + timedelta(seconds=30)
    court.clock.advance(60)
    with court.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordon_id, reason="done")
    court.clock.advance(60)
    court.signal("ecc", code=95, at=at)
    court.judge()
    assert standings(court) == {Standing.HEALTHY}
    (row,) = court.rows(EvidenceRow)
    assert "maintenance" in row.suppressed_by


def test_what_still_stands_at_the_end_of_a_window_weighs_from_then_on(court: Court) -> None:
    declare(court, for_s=1200)
    court.beat()
    court.signal("state", kind="gpu_state", code=None, values={"sram_threshold_exceeded": 1.0})
    court.judge()
    court.clock.advance(1199)
    court.beat()
    hold(court)
    court.judge()
    assert court.standing() is Standing.HEALTHY
    court.clock.advance(1)
    court.beat()
    hold(court)
    court.judge()
    assert court.standing() is not Standing.HEALTHY


def test_two_condemned_gpus_hold_their_node_until_one_is_dismissed(court: Court) -> None:
    court.beat()
    for name, uuid, code in (("first", GPU, 79), ("second", OTHER, 119)):
        court.signal(name, uuid, kind="xid", code=code, source="kernel_log")
    court.judge()
    assert hold(court) == 1
    (cordon,) = holds(court)
    assert (cordon.node_id, cordon.gpu_uuid) == (court.node_id, None)
    assert cordon.reason.startswith("2 GPUs of this node are at fault: ")
    assert GPU in cordon.reason
    assert OTHER in cordon.reason
    assert hold(court) == 0
    court.clock.advance(4 * 3600)
    court.beat()
    assert hold(court) == 0, "the judge reports it again: no hour ends it"
    (row,) = [each for each in court.rows(EvidenceRow) if each.gpu_uuid == OTHER]
    with court.units.begin(OPERATOR, interventions.DISMISS) as unit:
        interventions.dismiss(unit, OTHER, row.id, reason="its slot was reseated")
    assert hold(court) == 1
    assert holds(court) == []
