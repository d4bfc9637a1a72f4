"""Inspections of simulated GPUs as events: each fault that can be planted shows in one of them."""

from pathlib import Path

import msgspec
import pytest

from agents.events.gpus import LOADED_CHECKS, GpuTeller
from agents.events.idle import UTILISATION
from agents.events.naming import Naming
from agents.probes.faults import (
    GPU_COUNTERS,
    LINK_COUNTERS,
    Fault,
    FaultFileError,
    clear_faults,
    read_faults,
    write_fault,
)
from agents.probes.interface import GpuCheck, GpuInspection, ProbeEvent
from agents.probes.profiles import A100, H100, SIMULATED_CUDA, SIMULATED_DRIVER
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from muster.domain.evidence.findings import EventKind
from muster.domain.evidence.state_readings import GPU_RATES, GPU_STATE, words_in
from muster.domain.gpu.metrics import METRICS
from muster.domain.ids import GpuUuid

START_MS = 1_790_000_000_000
UUID = simulated_uuids(1)[0]


class Watched:
    """One simulated GPU, inspected once a minute."""

    def __init__(self, faults: Path, activity: float = 1.0) -> None:
        self.faults = faults
        self.teller = GpuTeller(Naming("1"))
        self._now_ms = START_MS
        self._probe = SimulatedProbe(
            H100, simulated_uuids(1), faults_path=faults, activity=lambda _: activity, wall_ms=lambda: self._now_ms
        )

    def plant(self, fault: Fault) -> None:
        write_fault(self.faults, fault)

    def minute(self) -> list[ProbeEvent]:
        self._now_ms += 60_000
        for at_ms in range(self._now_ms - 50_000, self._now_ms + 1, 10_000):
            self.teller.saw(self._probe.check(at_ms))
        return list(self.teller.report(self._probe.inspect(self._now_ms), self._now_ms, self._now_ms / 1000))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "faults.json")


UNTOLD = ("retired_pages_", "idle_", "p2p_", "nvlink_effective_ber_", "nvlink_symbol_ber_")
"""What a simulated GPU has no answer for of itself."""


def fault(kind: str, link: int | None = None, **values: float) -> Fault:
    return Fault(gpu=UUID, kind=kind, at_ms=START_MS, link=link, values=values)  # type: ignore[arg-type]  # both kinds


def test_a_healthy_gpu_is_reported_once_whole_and_then_costs_nothing(watched: Watched) -> None:
    (event,) = watched.minute()
    assert (event.kind, event.gpu_uuid) == (EventKind.GPU_STATE, UUID)
    assert set(event.values) == {name for name in GPU_STATE if not name.startswith(UNTOLD)}
    assert words_in(event.text) == {
        "cuda_version": SIMULATED_CUDA,
        "board_part_number": H100.board_part_number,
        "gsp_firmware_version": SIMULATED_DRIVER,
        "inforom_version": H100.inforom_version,
        "model": "NVIDIA_H100_80GB_HBM3",
        "vbios_version": "96.00.A5.00.SIM",
    }
    assert [watched.minute() for _ in range(10)] == [[]] * 10


@pytest.mark.parametrize("name", [name for name in GPU_STATE if not name.startswith("idle_")])
def test_each_state_can_be_planted_is_reported_and_reported_again_when_it_is_over(watched: Watched, name: str) -> None:
    watched.minute()
    watched.plant(fault("state", **{name: 777}))
    (event,) = watched.minute()
    assert (event.kind, event.values[name]) == (EventKind.GPU_STATE, 777)
    clear_faults(watched.faults)
    (over,) = watched.minute() if not name.startswith(UNTOLD) else (event,)
    assert over.values.get(name) != 777 or name.startswith(UNTOLD)


@pytest.mark.parametrize("name", [name for name in GPU_STATE if name.startswith("idle_")])
def test_what_a_gpu_does_by_itself_is_reported_where_no_sample_saw_a_program(tmp_path: Path, name: str) -> None:
    told = {}
    for activity in (0.0, 1.0):
        watched = Watched(tmp_path / f"{activity}.json", activity=activity)
        watched.plant(fault("state", **{name: 99}))
        (event,) = watched.minute()
        told[activity] = event.values.get(name)
    own = 0.0 if name == UTILISATION else 99
    assert told == {0.0: own, 1.0: None}


@pytest.mark.parametrize("name", GPU_COUNTERS)
def test_each_counter_of_a_gpu_can_rise(watched: Watched, name: str) -> None:
    watched.minute()
    watched.plant(fault("rate", **{name: 12}))
    watched.minute()
    (event,) = watched.minute()
    assert event.kind is EventKind.GPU_RATES
    assert (event.values[name], event.values["window_s"]) == (12, 60)
    assert set(event.values) <= set(GPU_RATES)
    assert ("pcie_generation" in event.values) == name.startswith("pcie_")
    assert (f"{name}_total" in event.values) == name.startswith("ecc_")


@pytest.mark.parametrize("name", LINK_COUNTERS)
def test_each_counter_of_a_link_can_rise_and_names_the_link(watched: Watched, name: str) -> None:
    watched.minute()
    watched.plant(fault("rate", link=11, **{name: 3}))
    told = [watched.minute() for _ in range(4)]
    bad = [[0]] * 4 if name == "symbol_errors" else [[1], [2], [3], [4]]
    assert [[event.values["bad_windows"] for event in events] for events in told] == bad
    (event,) = told[-1]
    assert (event.values["link"], event.values[name]) == (11, 3)
    clear_faults(watched.faults)
    (reset,) = watched.minute()
    assert (reset.kind, reset.text) == (EventKind.COUNTER_RESET, name), "a counter that fell rose by nothing"


def test_a_link_that_is_down_is_a_state(watched: Watched) -> None:
    watched.minute()
    watched.plant(Fault(gpu=UUID, kind="nvlink_down", at_ms=START_MS, count=2))
    (event,) = watched.minute()
    assert (event.values["nvlink_links"], event.values["nvlink_links_down"]) == (18, 2)


@pytest.mark.parametrize("kind", ["lost", "late"])
def test_a_gpu_that_does_not_answer_states_nothing(watched: Watched, kind: str) -> None:
    watched.minute()
    watched.plant(Fault(gpu=UUID, kind=kind, at_ms=START_MS))  # type: ignore[arg-type]  # both are kinds
    assert watched.minute() == []


def test_no_two_events_have_one_origin(watched: Watched) -> None:
    watched.plant(fault("rate", replays=1, link=0))
    watched.plant(fault("rate", pcie_replays=1))
    origins = [event.origin for _ in range(5) for event in watched.minute()]
    assert len(origins) == 9
    assert len(set(origins)) == len(origins)


def check(utilisation: float, generation: float, width: float) -> GpuCheck:
    known = {"utilisation_percent": utilisation, "pcie_generation": generation, "pcie_width": width}
    return GpuCheck(gpu_uuid=UUID, index=0, at_ms=0, values=tuple(known.get(metric.name) for metric in METRICS))


def test_the_pcie_link_is_reported_as_it_was_under_load_and_not_at_rest() -> None:
    teller = GpuTeller(Naming("1"))
    look = GpuInspection(gpu_uuid=GpuUuid(UUID), index=0, state={"ecc_enabled": 1})
    teller.pcie.saw([check(0, 1, 16)])
    (first,) = teller.report([look], 0, 0)
    assert "pcie_loaded_generation" not in first.values
    for _ in range(LOADED_CHECKS):
        teller.pcie.saw([check(90, 5, 8)])
    (loaded,) = teller.report([look], 0, 60)
    assert (loaded.values["pcie_loaded_generation"], loaded.values["pcie_loaded_width"]) == (5, 8)
    teller.pcie.saw([check(0, 1, 16)])
    assert teller.report([look], 0, 120) == ()


def test_a_link_that_slept_at_a_jobs_end_is_not_what_it_was_under_load() -> None:
    """The utilisation is of the interval before, generation and width of that moment."""
    teller = GpuTeller(Naming("1"))
    look = GpuInspection(gpu_uuid=GpuUuid(UUID), index=0, state={"ecc_enabled": 1})
    for generation in (1, 5, 5, 5, 1, 5, 1):
        teller.pcie.saw([check(60, generation, 16)])
    teller.pcie.saw([check(0, 1, 16)])
    (told,) = teller.report([look], 0, 60)
    assert told.values["pcie_loaded_generation"] == 5
    teller.pcie.saw([check(60, 1, 16)])
    teller.pcie.saw([check(60, 1, 16)])
    assert teller.report([look], 0, 120) == (), "two checks are no load"


def test_replays_are_reported_next_to_the_fastest_link_of_their_window() -> None:
    teller = GpuTeller(Naming("1"))

    def rates(replays: float, now_s: float) -> tuple[float, float]:
        look = GpuInspection(
            gpu_uuid=UUID,
            index=0,
            counters={"pcie_replays": replays},
            alongside={"pcie_generation": 1, "pcie_width": 16},
        )
        *_, event = teller.report([look], 0, now_s)  # the first ones report a link under load
        return event.values["pcie_generation"], event.values["pcie_width"]

    teller.report([GpuInspection(gpu_uuid=UUID, index=0, counters={"pcie_replays": 0})], 0, 0)
    teller.pcie.saw([check(90, 5, 16)])
    teller.pcie.saw([check(0, 1, 16)])
    assert rates(4, 60) == (5, 16)
    assert rates(8, 120) == (1, 16), "no check in this window: what the inspection itself read"


def test_a_gpu_of_a_generation_without_fabric_reports_it() -> None:
    (found,) = SimulatedProbe(A100, simulated_uuids(1)).inspect(START_MS)
    assert "fabric_state" in found.unsupported
    assert "fabric_state" not in found.state


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"kind": "state"}, "it needs some"),
        ({"kind": "state", "values": {"colour": 1}}, "there is no colour"),
        ({"kind": "rate", "values": {"crc_errors": 1}}, "there is no crc_errors"),
        ({"kind": "rate", "link": 3, "values": {"pcie_replays": 1}}, "there is no pcie_replays"),
        ({"kind": "rate", "link": 64, "values": {"replays": 1}}, "link"),
        ({"kind": "state", "values": {"ecc_enabled": -1}}, "values"),
    ],
)
def test_a_fault_with_other_names_is_refused_and_reported_which_there_are(
    tmp_path: Path, document: dict[str, object], words: str
) -> None:
    path = tmp_path / "faults.json"
    path.write_bytes(msgspec.json.encode({"faults": [{"gpu": UUID, **document}]}))
    with pytest.raises(FaultFileError, match=words):
        read_faults(path)


def test_a_driver_that_was_loaded_again_is_one_event_of_the_gpu_and_no_rise(watched: Watched) -> None:
    watched.minute()
    watched.plant(fault("rate", pcie_replays=60, ecc_corrected_dram=1))
    watched.plant(fault("rate", link=3, crc_errors=5, replays=1))
    watched.plant(fault("rate", link=4, crc_errors=5))
    watched.minute()
    clear_faults(watched.faults)
    (event,) = watched.minute()
    assert (event.kind, event.gpu_uuid) == (EventKind.COUNTER_RESET, UUID)
    assert event.values == {"num_counters": 5.0, "num_links": 2.0}
    assert event.text == "crc_errors, ecc_corrected_dram, pcie_replays, replays"
    assert watched.minute() == [], "once"
