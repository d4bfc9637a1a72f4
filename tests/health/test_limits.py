"""Every rule over states and rates at its own limit (``tests.health.limits``): just below it says nothing, at it there
is a finding.
"""

from dataclasses import replace

import pytest

from health.detectors.links.pcie_replays import limit_per_minute
from health.detectors.ports import port_degraded
from health.detectors.registry import NATURES, RULES, closings_of, judge_signal
from muster.domain.evidence.findings import EventKind, Severity, Source
from muster.domain.evidence.state_readings import PORT_COUNTERS, PORT_RATES, PORT_STATE, VALUES_OF, words_text
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy
from tests.health.case_factory import GPU, NODE, NOW_MS, POLICY, signal
from tests.health.detectors.test_repeats import merged
from tests.health.limits.gpu_rates import GPU_RATES
from tests.health.limits.gpu_states import GPU_STATES
from tests.health.limits.hosts import HOSTS
from tests.health.limits.limit import (
    HOST,
    HOST_RATES,
    MINUTE,
    NODE_KINDS,
    PORT,
    PORT_RATE,
    RATES,
    RDMA,
    SEEN,
    STATE,
    reported,
)
from tests.health.limits.ports import PORTS

LIMITS = {**GPU_STATES, **GPU_RATES, **HOSTS, **PORTS}


@pytest.mark.parametrize("name", LIMITS)
def test_just_below_its_limit_a_rule_states_nothing(name: str) -> None:
    limit = LIMITS[name]
    assert judge_signal(reported(limit.kind, limit.below, limit.text), POLICY) == ()


@pytest.mark.parametrize("name", LIMITS)
def test_at_its_limit_a_rule_finds_its_fault(name: str) -> None:
    limit = LIMITS[name]
    (found,) = judge_signal(reported(limit.kind, limit.at, limit.text), POLICY)
    assert (found.fault_key, found.severity) == (limit.key, limit.severity)
    assert (found.gpu_uuid, found.node_id) == (None if limit.kind in NODE_KINDS else GPU, NODE)
    assert found.summary


STATES = [
    name
    for name, limit in LIMITS.items()
    if NATURES[limit.key.partition(":")[0]] is Nature.STATE
    and limit.kind is not HOST_RATES
    and limit.severity is not Severity.INFO
]


@pytest.mark.parametrize("name", [*STATES, "persistence_off"])
def test_a_state_that_is_reported_well_again_ends_its_fault(name: str) -> None:
    limit = LIMITS[name]
    standing = closings_of(reported(limit.kind, limit.at, limit.text), POLICY)
    well = closings_of(reported(limit.kind, limit.below, limit.text), POLICY)
    assert limit.key not in {each.fault_key for each in standing}
    assert limit.key in {each.fault_key for each in well}


def test_what_is_notified_of_one_reading_ends_no_fault_of_another() -> None:
    assert [each.fault_key for each in closings_of(reported(STATE, {"inforom_valid": 1}), POLICY)] == ["inforom"]


def test_every_value_in_the_tables_has_a_name_that_agents_report() -> None:
    known = {**VALUES_OF, PORT: PORT_STATE, PORT_RATE: PORT_RATES}
    strange = {
        name: value
        for name, limit in LIMITS.items()
        for value in {*limit.below, *limit.at}
        if value not in known[limit.kind]
    }
    assert strange == {}


def test_a_fleet_may_state_how_many_ports_and_how_fast_a_host_must_have() -> None:
    """Such as gpud expects of an H100: 8 ports at 400 Gb/s."""
    floor = HealthPolicy.model_validate({"detectors": {"port_count": {"ports_min": 8}, "port_rate": {"gbps_min": 400}}})
    for kind, values, text, num in (
        (HOST, {"expected_ports": 7, "found_ports": 7}, "", 1),
        (HOST, {"expected_ports": 8, "found_ports": 8}, "", 0),
        (PORT, {"state": 4, "rate_gbps": 200}, RDMA, 1),
        (PORT, {"state": 4, "rate_gbps": 400}, RDMA, 0),
        (PORT, {"state": 4, "rate_gbps": 100}, "eth0", 0),
    ):
        assert len(judge_signal(reported(kind, values, text), floor)) == num
        assert judge_signal(reported(kind, values, text), POLICY) == ()


def test_every_counter_of_a_port_is_judged_or_stated_not_to_be() -> None:
    judged = {name for limit in LIMITS.values() if limit.kind is PORT_RATE for name in limit.at}
    not_judged = set(PORT_COUNTERS) - judged
    assert not_judged == {"port_rcv_remote_physical_errors", "rx_dropped"}
    for name in not_judged:
        assert f"``{name}``" in (port_degraded.__doc__ or "")
        assert judge_signal(reported(PORT_RATE, {name: 10**9, **MINUTE}, RDMA), POLICY) == ()


def test_lost_packets_however_often_hold_no_node() -> None:
    lost = [
        replace(
            reported(PORT_RATE, {"local_ack_timeout_err": 10**6, **MINUTE}, RDMA), signal_id=f"{at}", at_ms=NOW_MS + at
        )
        for at in range(0, 3_600_000, 60_000)
    ]
    assert {each.fault_key for each in merged(lost).values()} == {f"port_transport:{RDMA}"}


@pytest.mark.parametrize("model", ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA A40", ""])
def test_of_a_board_for_a_slot_no_nvlinks_are_expected(model: str) -> None:
    few = reported(STATE, {"nvlink_links": 4, "nvlink_mb_per_s": 1000}, words_text({"model": model}))
    assert judge_signal(few, POLICY) == ()


def test_every_rule_over_states_and_rates_stands_in_the_table() -> None:
    tested = {limit.key.partition(":")[0] for limit in LIMITS.values()}
    over_events = {
        rule.name for rule in RULES if rule.nature in {Nature.STATE, Nature.RATE} and rule.reads != "evidence"
    }
    assert over_events - tested == {"throttle_seconds"}, "whose faults are clock_events' own"


@pytest.mark.parametrize(
    ("generation", "lanes", "limit"),
    [(1, 16, 3), (2, 16, 5), (3, 16, 8), (4, 16, 16), (5, 16, 31), (6, 16, 62), (7, 16, 62), (5, 8, 16), (4, 1, 1)],
)
def test_pcie_replays_are_allowed_by_generation_and_lanes(generation: int, lanes: int, limit: int) -> None:
    assert limit_per_minute(generation, lanes, POLICY) == limit


def test_two_missing_gpus_are_the_hosts_fault_and_one_is_not() -> None:
    (found,) = judge_signal(reported(HOST, {"expected_gpus": 8, "found_gpus": 6}), POLICY)
    assert found.severity is Severity.DEGRADED


def test_a_disk_that_is_full_is_another_and_worse_fault_than_one_that_fills_up() -> None:
    (found,) = judge_signal(reported(HOST, {"disk_free_fraction": 0.009}), POLICY)
    assert (found.fault_key, found.severity) == ("host_disk:full", Severity.DEGRADED)
    (found,) = judge_signal(reported(HOST, {"inodes_free_fraction": 0.0}), POLICY)
    assert (found.fault_key, found.severity) == ("host_disk:no_inodes", Severity.DEGRADED)


def test_symbol_errors_by_the_second_are_a_bad_link_next_to_being_fatal() -> None:
    found = judge_signal(reported(PORT_RATE, {"symbol_error": 601, **MINUTE}, RDMA), POLICY)
    assert {each.fault_key for each in found} == {f"port_fatal:{RDMA}", f"port_degraded:{RDMA}"}


def test_a_rise_without_a_window_is_no_rate() -> None:
    assert judge_signal(reported(RATES, {"pcie_replays": 900, "pcie_generation": 5, "pcie_width": 16}), POLICY) == ()


def test_a_state_of_no_gpu_states_nothing() -> None:
    assert judge_signal(signal(STATE, gpu=None, sram_threshold_exceeded=1), POLICY) == ()


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("Non-fatal, Link 32 egress non-posted PRIV error", Severity.WARNING),
        ("Fatal, Link 32 egress non-posted PRIV error", Severity.DEGRADED),
    ],
)
def test_an_nvswitch_is_the_nodes_matter_and_as_bad_as_its_own_word(text: str, severity: Severity) -> None:
    (found,) = judge_signal(signal(EventKind.SXID, code=12028, source=Source.KERNEL_LOG, text=text), POLICY)
    assert (found.fault_key, found.gpu_uuid, found.severity) == ("sxid:12028", None, severity)


def test_more_of_an_nvswitchs_error_is_no_second_one() -> None:
    text = "Severity 0 Engine instance 28 Sub-engine instance 00"
    assert judge_signal(signal(EventKind.SXID, code=12028, source=Source.KERNEL_LOG, text=text), POLICY) == ()


@pytest.mark.parametrize("seen", [{}, {"was_active": 0}])
def test_a_port_that_none_saw_up_is_not_down(seen: dict[str, float]) -> None:
    assert judge_signal(reported(PORT, {"state": 1, "physical_state": 2, **seen}, RDMA), POLICY) == ()


@pytest.mark.parametrize(
    ("values", "text"),
    [({"is_missing": float("nan")}, RDMA), ({"is_missing": -1}, RDMA), ({}, RDMA), ({"is_missing": 1}, "eth0")],
)
def test_a_port_is_missing_only_by_a_plain_word_about_an_rdma_port(values: dict[str, float], text: str) -> None:
    assert judge_signal(reported(PORT, values, text), POLICY) == ()


def test_a_port_that_is_missing_is_not_down_besides() -> None:
    (found,) = judge_signal(reported(PORT, {"is_missing": 1, "was_active": 1, "best_rate_gbps": 400}, RDMA), POLICY)
    assert found.fault_key == f"port_missing:{RDMA}"


def test_the_name_of_a_port_is_made_fit_for_a_key() -> None:
    (found,) = judge_signal(reported(PORT, {"state": 1, **SEEN}, "mlx5 0\n<b>" + "x" * 200), POLICY)
    assert found.fault_key == "port_down:mlx5_0_b_" + "x" * 55
    assert found.onset_ms == NOW_MS
