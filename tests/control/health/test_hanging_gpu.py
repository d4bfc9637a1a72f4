"""A real agent on the fake driver, one GPU of which hangs: its reports go through intake, judge and admission.

Each sample of the agent counts as twenty seconds of the control plane, so ten minutes are thirty samples.
"""

import threading
from pathlib import Path

from agents.probes.nvml import DEADLINE_S
from muster.db.models import EvidenceRow
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing
from muster.wire.telemetry import Report
from tests.agents.fake_nvml.probed_host import Libraries
from tests.agents.fake_nvml.state import map_state
from tests.agents.probes.conftest import libraries
from tests.agents.test_daemon import agent, every, serving_agents
from tests.control.health.conftest import GPU, OTHER, Court
from tests.control.health.test_freshness import is_admitted
from tests.recorded_server import Answer
from tests.waiting import wait_until

__all__ = ["libraries"]
DAEMON = """
from agents import daemon
from agents.probes.nvml import open_nvml_probe
from muster.logs import configure_logs
from muster.settings import load_settings
settings = load_settings()
configure_logs(settings, "agent")
daemon.run(settings, open_nvml_probe())
"""
SAMPLE_S = 20.0
HANG_MS = 600_000


class Control:
    """The control plane: each sample is stored, and one step of time is over."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self.samples: list[Report] = []
        self.news = threading.Event()

    def take(self, report: Report) -> None:
        if report.gpus:
            self.court.clock.advance(SAMPLE_S)
        self.court.take(report)
        if report.gpus:
            self.samples.append(report)

    def after_samples(self, number: int) -> None:
        goal = len(self.samples) + number
        wait_until(lambda: len(self.samples) >= goal)


def judged(court: Court) -> Standing:
    court.judge()
    return court.standing()


def severities(court: Court, uuid: GpuUuid) -> list[int]:
    rows = court.rows(EvidenceRow)
    return sorted(row.severity for row in rows if row.gpu_uuid == uuid and row.detector == "freshness")


def test_a_gpu_whose_driver_hangs_goes_out_by_degrees_and_its_sibling_stays(
    court: Court, tmp_path: Path, libraries: Libraries
) -> None:
    state = map_state(tmp_path / "nvml.state", 2)
    for place, uuid in enumerate((GPU, OTHER)):
        state.gpus[place].uuid = uuid.encode()
    control = Control(court)
    with serving_agents() as server:
        answered = every(1.0)

        def answer(report: Report) -> Answer:
            control.take(report)
            return answered(report)

        server.answer = answer
        with agent(
            server,
            tmp_path / "a",
            program=DAEMON,
            LD_LIBRARY_PATH=str(libraries.today),
            FAKE_NVML_STATE=str(tmp_path / "nvml.state"),
        ):
            control.after_samples(2)
            assert (is_admitted(court), severities(court, GPU)) == (True, [])
            state.gpus[0].hang_ms = HANG_MS
            wait_until(lambda: control.samples[-1].gpus[0].is_late)
            assert is_admitted(court) is (court.standing() is Standing.HEALTHY)
            wait_until(lambda: judged(court) is not Standing.HEALTHY)
            assert (court.standing(), is_admitted(court)) == (Standing.SUSPECT, False)
            wait_until(lambda: judged(court) is Standing.QUARANTINED)
            assert severities(court, GPU)[-1] == 3
            assert (court.standing(OTHER), severities(court, OTHER)) == (Standing.HEALTHY, [])
            assert is_admitted(court, OTHER)
            newest = control.samples[-1].gpus
            assert [gpu.is_late for gpu in newest] == [True, False]
            assert (newest[0].latency_ms or 0) > DEADLINE_S * 1000 > (newest[1].latency_ms or 0) > 0
