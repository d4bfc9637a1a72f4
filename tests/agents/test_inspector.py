"""The slow loop: what it asks, how often, and what an agent then sends."""

import random
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agents.events.gpus import GpuTeller
from agents.events.naming import Naming
from agents.host.events import HostPlaces, HostTeller
from agents.inspector import Inspector
from agents.observer import Clocks
from agents.probes.interface import GpuInspection, ProbeError, ProbeEvent
from agents.probes.profiles import H100
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from muster.domain.evidence.findings import EventKind
from tests.agents.host.trees import HostTree

START_MS = 1_790_000_000_000


class Counted(SimulatedProbe):
    """Simulated GPUs whose driver may be away; counts its inspections."""

    num_inspections = 0
    is_away = False

    def inspect(self, now_ms: int) -> tuple[GpuInspection, ...]:
        self.num_inspections += 1
        if self.is_away:
            raise ProbeError("the NVIDIA driver is not loaded")
        return super().inspect(now_ms)


@dataclass
class Line:
    root: Path
    passed_ms: int = 0
    kept: list[ProbeEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.probe = Counted(H100, simulated_uuids(8))
        clocks = Clocks(lambda: 5_000 + self.passed_ms, lambda: START_MS + self.passed_ms)
        naming = Naming("1")
        self.inspector = Inspector(
            self.probe,
            GpuTeller(naming),
            HostTeller(naming, HostPlaces(root=self.root, folders=(self.root,))),
            clocks=clocks,
            keep=self.kept.extend,
            rng=random.Random(1),  # noqa: S311  # a test that repeats
        )

    def pass_s(self, seconds: int) -> list[ProbeEvent]:
        """What was kept while so many seconds passed, a turn every ten."""
        del self.kept[:]
        for _ in range(0, seconds, 10):
            self.inspector.turn()
            self.passed_ms += 10_000
        return list(self.kept)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    HostTree(tmp_path).infiniband()
    return Line(tmp_path)


def test_gpus_are_inspected_about_once_a_minute_and_an_hour_of_quiet_reports_each_thing_once(line: Line) -> None:
    kinds = [event.kind for event in line.pass_s(3_500)]
    assert 50 <= line.probe.num_inspections <= 70
    assert kinds.count(EventKind.GPU_STATE) == 8
    assert sorted(set(kinds)) == [EventKind.GPU_STATE, EventKind.HOST_STATE, EventKind.PORT_STATE]
    assert kinds.count(EventKind.PORT_STATE) == 1


def test_all_is_reported_again_within_the_next_hour(line: Line) -> None:
    line.pass_s(3_500)
    kinds = [event.kind for event in line.pass_s(200)]
    assert kinds.count(EventKind.GPU_STATE) == 8
    assert kinds.count(EventKind.PORT_STATE) == 1


def test_a_port_is_seen_to_fall_within_ten_seconds(line: Line) -> None:
    line.pass_s(30)
    HostTree(line.root).infiniband("1: DOWN")
    assert [event.values["state"] for event in line.pass_s(10)] == [1]


def test_without_a_driver_the_host_is_reported_all_the_same(line: Line) -> None:
    line.probe.is_away = True
    kinds = {event.kind for event in line.pass_s(120)}
    assert kinds == {EventKind.HOST_STATE, EventKind.PORT_STATE}
    line.probe.is_away = False
    assert EventKind.GPU_STATE in {event.kind for event in line.pass_s(120)}


def test_it_waits_for_the_first_sample_and_ends_without_one(line: Line) -> None:
    stop, sampled = threading.Event(), threading.Event()
    thread = threading.Thread(target=line.inspector.run, args=(sampled, stop), daemon=True)
    thread.start()
    thread.join(1.2)
    assert line.probe.num_inspections == 0
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert line.probe.num_inspections == 0


def test_the_host_reports_how_many_of_its_gpus_are_set_up_otherwise_than_the_rest(line: Line) -> None:
    told = [event.values for event in line.pass_s(60) if event.kind is EventKind.HOST_STATE]
    assert told[-1]["vbios_differs"] == told[-1]["persistence_differs"] == 0
    look, *rest = line.probe.inspect(0)
    flashed = replace(look, words={**look.words, "vbios_version": "96.00.00.00.01"})
    line.probe.inspect = lambda now_ms: (flashed, *rest)  # type: ignore[method-assign]  # noqa: ARG005
    (told_again,) = (event.values for event in line.pass_s(120) if event.kind is EventKind.HOST_STATE)
    assert told_again["vbios_differs"] == 1
