"""The agent's side: what it measures around the run, and that a report goes out until the server has it."""

import random
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from msgspec import UNSET

from agents.burn_in.bench_process import NO_OPERATIONS, Bench, Measured, Operations
from agents.burn_in.measuring import Measuring
from agents.burn_in.worker import AWAY_S, BurnInWorker
from agents.dcgm.diagnosing import DcgmDiag, Diagnosed, DiagnosingError
from agents.probes.interface import (
    ComputeDevice,
    GpuCheck,
    GpuIdentity,
    GpuInspection,
    HostInventory,
    ProbeError,
    ProbeEvent,
)
from muster.client.transport import Problem, UnreachableError
from muster.domain.gpu.metrics import INDEX, NUM_METRICS
from muster.domain.gpu.signal_groups import SignalGroup
from muster.domain.ids import GpuUuid
from muster.wire.burn_in import BurnInAnswer, BurnInOrder, BurnInPoll, BurnInPollAnswer, BurnInReport, Figures
from muster.wire.operations import SuspectOperation

ONE, TWO = GpuUuid("GPU-one"), GpuUuid("GPU-two")
ZEROS = tuple(0.0 for _ in range(NUM_METRICS))


def values(**named: float | None) -> tuple[float | None, ...]:
    changed: list[float | None] = list(ZEROS)
    for name, value in named.items():
        changed[INDEX[name]] = value
    return tuple(changed)


@dataclass
class PlayedProbe:
    """GPUs by their readings before and after the run."""

    readings: dict[GpuUuid, list[GpuCheck]]
    kind: str = "cuda"
    is_mig: bool = False
    is_away: bool = False

    def identify(self) -> HostInventory:
        gpus = tuple(
            GpuIdentity(uuid=uuid, index=index, model="NVIDIA H100", is_mig_enabled=self.is_mig)
            for index, uuid in enumerate(self.readings)
        )
        return HostInventory(driver_version="580", gpus=gpus, is_simulated=self.kind == "cpu")

    def check(self, _now_ms: int) -> tuple[GpuCheck, ...]:
        if self.is_away:
            raise ProbeError("the driver is away\x00")
        return tuple(checks.pop(0) if len(checks) > 1 else checks[0] for checks in self.readings.values())

    def inspect(self, _now_ms: int) -> tuple[GpuInspection, ...]:
        return ()

    def ages_s(self) -> Mapping[SignalGroup, float]:
        return {}

    def take_change(self) -> bool:
        return False

    def compute_device(self, gpu_uuid: GpuUuid) -> ComputeDevice:
        if gpu_uuid not in self.readings:
            raise ProbeError(f"{gpu_uuid} is no GPU of this host")
        return ComputeDevice("cuda") if self.kind == "cuda" else ComputeDevice("cpu", rates={"speed": 2.0})

    def events(self, _timeout_s: float) -> tuple[ProbeEvent, ...]:
        return ()

    def close(self) -> None:
        """Nothing is held."""


class PlayedBench(Bench):
    """Says what is asked of it, and remembers which GPUs shared a process."""

    def __init__(self) -> None:
        super().__init__(sys.executable)
        object.__setattr__(self, "batches", [])
        object.__setattr__(self, "operations", {})

    batches: list[list[GpuUuid]]
    operations: dict[GpuUuid, SuspectOperation]

    def run(
        self,
        gpus: Mapping[GpuUuid, ComputeDevice],
        deadline_s: float,
        stop: threading.Event,
        take: Callable[[Measured], None],
        operations: Operations = NO_OPERATIONS,
    ) -> None:
        del deadline_s, stop
        self.operations.update(operations)
        self.batches.append(list(gpus))
        for uuid in gpus:
            take(Measured(gpu=uuid, library="torch", partial_sums=(("a", 1, 1),), rates={"speed": 1.0}))


def check(uuid: GpuUuid, *, is_lost: bool = False, **named: float | None) -> GpuCheck:
    return GpuCheck(gpu_uuid=uuid, index=0, at_ms=0, values=values(**named), is_lost=is_lost)


def measure(probe: PlayedProbe, *uuids: GpuUuid) -> tuple[dict[GpuUuid, Figures | str], PlayedBench]:
    found: dict[GpuUuid, Figures | str] = {}
    bench = PlayedBench()
    measuring = Measuring(probe, bench, wall_ms=lambda: 0)
    measuring.run(dict.fromkeys(uuids or (ONE,), 60.0), threading.Event(), found.__setitem__)
    return found, bench


class PlayedDiag(DcgmDiag):
    """DCGM as a test says; ``requested``: slot, serial and whether time was left."""

    def __init__(self, outcome: Diagnosed | str) -> None:
        super().__init__(3)
        object.__setattr__(self, "outcome", outcome)
        object.__setattr__(self, "requested", [])

    outcome: Diagnosed | str
    requested: list[tuple[int, str | None, bool]]

    def run(self, index: int, serial: str | None, deadline_s: float, stop: threading.Event) -> Diagnosed:
        del stop
        self.requested.append((index, serial, 0 < deadline_s <= 60))
        if isinstance(self.outcome, str):
            raise DiagnosingError(self.outcome)
        return self.outcome


def diagnosed(outcome: Diagnosed | str, kind: str = "cuda") -> tuple[Figures | str, PlayedDiag]:
    diag, found = PlayedDiag(outcome), dict[GpuUuid, Figures | str]()
    probe = PlayedProbe({ONE: [check(ONE)]}, kind=kind)
    measuring = Measuring(probe, PlayedBench(), wall_ms=lambda: 0, diag=diag)
    measuring.run({ONE: 60.0}, threading.Event(), found.__setitem__)
    return found[ONE], diag


def test_the_vendors_tests_are_part_of_the_figures_where_the_host_runs_them() -> None:
    figures, diag = diagnosed(Diagnosed("DCGM 4.2.3", 3, 11, ("memory failed on GPU 0: row remap failure",)))
    assert isinstance(figures, Figures)
    assert figures.vendor_tests is not UNSET
    assert (figures.vendor_tests.level, figures.vendor_tests.num_passed) == (3, 11)
    assert figures.vendor_tests.failures == ("memory failed on GPU 0: row remap failure",)
    assert diag.requested == [(0, None, True)]


def test_vendors_tests_that_gave_no_result_make_a_burn_in_that_could_not_run() -> None:
    assert diagnosed("dcgmi is not on this host")[0] == "dcgmi is not on this host"


def test_simulated_gpus_have_no_vendors_tests_and_what_is_not_run_is_not_sent() -> None:
    figures, diag = diagnosed("never asked", kind="cpu")
    assert isinstance(figures, Figures)
    assert diag.requested == []
    assert b"vendor_tests" not in msgspec.json.encode(figures), "servers that do not know it take the rest"


def test_counters_are_reported_by_their_growth_and_what_a_gpu_has_not_is_null() -> None:
    before = check(ONE, ecc_uncorrected_aggregate=5.0, nvlink_replays=None)
    after = check(ONE, ecc_uncorrected_aggregate=8.0, nvlink_replays=None)
    found, _ = measure(PlayedProbe({ONE: [before, after]}))
    figures = found[ONE]
    assert isinstance(figures, Figures)
    assert figures.counter_deltas["ecc_uncorrected_aggregate"] == 3.0
    assert figures.counter_deltas["nvlink_replays"] is None
    assert figures.counter_deltas["pcie_replays"] == 0.0
    assert "energy_j" not in figures.counter_deltas
    assert (figures.model, figures.driver, figures.rates, figures.is_simulated) == (
        "NVIDIA H100",
        "580",
        {"speed": 1.0},
        False,
    )


def test_real_gpus_come_one_by_one_and_simulated_ones_together_at_the_simulations_rates() -> None:
    readings = {ONE: [check(ONE)], TWO: [check(TWO)]}
    _, bench = measure(PlayedProbe(readings), ONE, TWO)
    assert bench.batches == [[ONE], [TWO]]
    found, bench = measure(PlayedProbe(readings, kind="cpu"), ONE, TWO)
    assert bench.batches == [[ONE, TWO]]
    figures = found[ONE]
    assert isinstance(figures, Figures)
    assert (figures.is_simulated, figures.rates, figures.host_rates) == (True, {"speed": 2.0}, {"speed": 1.0})


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (PlayedProbe({ONE: [check(ONE, num_processes=2.0)]}), "2 processes compute"),
        (PlayedProbe({ONE: [check(ONE)]}, is_mig=True), "MIG mode"),
        (PlayedProbe({ONE: [check(ONE, is_lost=True)]}), "does not answer"),
        (PlayedProbe({TWO: [check(TWO)]}), "no GPU of this host"),
        (PlayedProbe({ONE: [check(ONE)]}, is_away=True), "the driver is away"),
    ],
)
def test_what_cannot_be_burnt_in_is_not_touched_and_states_why(probe: PlayedProbe, words: str) -> None:
    found, bench = measure(probe)
    assert bench.batches == []
    assert isinstance(found[ONE], str)
    assert words in str(found[ONE])
    assert str(found[ONE]).isprintable()


def test_a_gpu_that_is_lost_in_the_run_has_no_figures() -> None:
    found, _ = measure(PlayedProbe({ONE: [check(ONE), check(ONE, is_lost=True)]}))
    assert found[ONE] == "the GPU does not answer after its burn-in"


@dataclass
class PlayedServer:
    """Gives its orders once; ``faults`` are what the next reports meet."""

    orders: Sequence[BurnInOrder]
    faults: list[Exception] = field(default_factory=list)
    requested: list[BurnInPoll] = field(default_factory=list)
    reports: list[BurnInReport] = field(default_factory=list)

    def poll(self, request: BurnInPoll) -> BurnInPollAnswer:
        self.requested.append(request)
        given, self.orders = tuple(self.orders), ()
        return BurnInPollAnswer(orders=given, poll_again_s=7.0)

    def report(self, burn_in_id: str, report: BurnInReport) -> BurnInAnswer:
        assert burn_in_id == "bi_1"
        self.reports.append(report)
        if self.faults:
            raise self.faults.pop(0)
        return BurnInAnswer(is_taken=True)


class Hasty(random.Random):
    """Waits for nothing."""

    def uniform(self, a: float, b: float) -> float:
        del a, b
        return 0.0


ORDER = BurnInOrder(burn_in_id="bi_1", gpu_uuid=ONE, try_number=2, deadline_s=60.0)


def worker(server: PlayedServer, probe: PlayedProbe | None = None) -> BurnInWorker:
    measuring = Measuring(probe or PlayedProbe({ONE: [check(ONE)]}), PlayedBench(), wall_ms=lambda: 0)
    return BurnInWorker(server, measuring, "boot-1", Hasty())


def test_a_report_is_sent_until_the_server_has_it() -> None:
    waits = [UnreachableError("away"), Problem(503, "unavailable", "x"), Problem(401, "unauthenticated", "x")]
    server = PlayedServer([ORDER], list(waits))
    own = worker(server)
    assert own.turn(threading.Event()) == 0.0
    assert len(server.reports) == len(waits) + 1
    assert {report.try_number for report in server.reports} == {2}
    assert server.reports[-1].figures is not None
    assert own.turn(threading.Event()) == 7.0


def test_a_suspect_operation_reaches_the_bench() -> None:
    suspect = SuspectOperation(kind="matmul", shape=(64, 32), dtype="float32", magnitude=0.5)
    bench = PlayedBench()
    measuring = Measuring(PlayedProbe({ONE: [check(ONE)]}), bench, wall_ms=lambda: 0)
    server = PlayedServer([msgspec.structs.replace(ORDER, operation=suspect)])
    BurnInWorker(server, measuring, "boot-1", Hasty()).turn(threading.Event())
    assert bench.operations == {ONE: suspect}


def test_a_report_that_is_refused_for_good_is_given_up() -> None:
    server = PlayedServer([ORDER], [Problem(422, "validation_failed", "x")])
    assert worker(server).turn(threading.Event()) == 0.0
    assert len(server.reports) == 1


def test_why_there_are_no_figures_is_reported_too() -> None:
    server = PlayedServer([ORDER])
    worker(server, PlayedProbe({TWO: [check(TWO)]})).turn(threading.Event())
    (report,) = server.reports
    assert (report.figures, report.could_not_run) == (None, "GPU-one is no GPU of this host")


def test_a_run_that_the_agents_end_cut_short_is_not_reported() -> None:
    server, stop = PlayedServer([ORDER]), threading.Event()
    stop.set()
    worker(server).turn(stop)
    assert server.reports == []


def test_an_agent_requests_one_real_gpu_at_a_time_and_for_all_simulated_ones() -> None:
    for kind, at_once in (("cuda", 1), ("cpu", 72)):
        server = PlayedServer([])
        worker(server, PlayedProbe({ONE: [check(ONE)]}, kind=kind)).turn(threading.Event())
        assert [request.max_orders for request in server.requested] == [at_once]


def test_a_server_that_is_away_is_queried_again_later() -> None:
    class Away(PlayedServer):
        def poll(self, request: BurnInPoll) -> BurnInPollAnswer:
            raise UnreachableError(request.boot_id)

    assert worker(Away([])).turn(threading.Event()) == AWAY_S


@pytest.mark.parametrize(("reasons", "covers"), [(0.0, ("clocks", "driver", "other")), (64.0, ("driver", "other"))])
def test_a_burn_in_names_what_it_covers(reasons: float, covers: tuple[str, ...]) -> None:
    """A simulated GPU reads the same under load; its one exact sum tests no memory, and no copies were made."""
    probe = PlayedProbe({ONE: [check(ONE), check(ONE, clock_event_reasons=reasons)]}, kind="cpu")
    found, _ = measure(probe)
    told = found[ONE]
    assert isinstance(told, Figures)
    assert told.covers == covers
