"""GPUs of one host that are not set up alike: counted by model, against most of them."""

from health.detectors.node.node_mismatch import differing
from health.detectors.registry import closings_of, judge_signal
from muster.domain.evidence.findings import EventKind, Severity, Source
from tests.health.case_factory import POLICY, signal

A: dict[str, float | str] = {
    "model": "H100",
    "vbios_version": "96.00",
    "persistence_enabled": 1.0,
    "application_clock_mhz": 1980.0,
}


def test_those_that_differ_from_most_of_their_model_are_counted() -> None:
    gpus = [A, A, A, {**A, "vbios_version": "96.01"}, {**A, "persistence_enabled": 0.0, "vbios_version": "96.02"}]
    assert differing(gpus) == {"vbios_differs": 2, "persistence_differs": 1, "clocks_differ": 0}


def test_another_model_is_compared_with_its_own() -> None:
    of_another: dict[str, float | str] = {"model": "L40S", "vbios_version": "95.02"}
    assert differing([A, A, of_another, of_another])["vbios_differs"] == 0


def test_one_gpu_and_what_it_does_not_report_is_compared_with_nothing() -> None:
    assert differing([A]) == {}
    assert differing([{"model": "H100"}, {"model": "H100"}]) == {}
    assert differing([]) == {}


def test_it_is_about_the_node_warns_and_is_over_when_all_are_alike() -> None:
    told = signal(EventKind.HOST_STATE, gpu=None, source=Source.HOST, vbios_differs=1, clocks_differ=0)
    (found,) = judge_signal(told, POLICY)
    assert (found.gpu_uuid, found.severity) == (None, Severity.WARNING)
    assert found.summary == "1 of the host's GPUs differs from most of their model in VBIOS"
    assert [each.fault_key for each in closings_of(told, POLICY)] == ["node_mismatch:application_clock_mhz"]
