"""Events of the driver other than XIDs (memory, recovery action, MIG, power source): a reason to check, no finding."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.probes.nvml_events import CHANGES
from muster.domain.gpu.metrics import INDEX
from tests.agents.fake_nvml.probed_host import Hosts, Libraries
from tests.agents.fake_nvml.state import map_state
from tests.agents.test_daemon import Server, agent, every, serving_agents

DAEMON_OF_REAL_GPUS = """
from agents import daemon
from agents.probes.nvml import open_nvml_probe
from muster.logs import configure_logs
from muster.settings import load_settings
settings = load_settings()
configure_logs(settings, "agent")
daemon.run(settings, open_nvml_probe())
"""
P_STATE = 0x4
SINGLE_CORRECTED_ERROR = 0x1
CLOCK = 0x10


@pytest.fixture
def server() -> Iterator[Server]:
    with serving_agents() as made:
        yield made


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_that_the_driver_reports_is_a_reason_to_check_once_and_no_event(hosts: Hosts, kind: str) -> None:
    host = hosts.healthy()
    host.state.gpus[1].pending_change = CHANGES[kind]
    assert host.take_change() == ([], True)
    assert host.take_change(timeout_s=0.1) == ([], False)


@pytest.mark.parametrize("bit", [SINGLE_CORRECTED_ERROR, P_STATE, CLOCK])
def test_what_comes_all_the_time_under_load_is_not_listened_to(hosts: Hosts, bit: int) -> None:
    state = hosts.state(1)
    state.gpus[0].event_types = 0xFFFF
    host = hosts.open(state)
    state.gpus[0].pending_change = bit
    assert host.take_change(timeout_s=0.2) == ([], False)
    assert not state.gpus[0].registered & bit


def test_an_xid_and_a_change_do_not_hide_each_other(hosts: Hosts) -> None:
    host = hosts.healthy()
    host.state.gpus[0].pending_xid = 48
    host.state.gpus[1].pending_change = CHANGES["uncorrected ECC error"]
    codes: list[int] = []
    has_changed = False
    while not (codes and has_changed):
        events, told = host.take_change()
        codes += [event["code"] for event in events]
        has_changed |= told
    assert codes == [48]


def test_a_gpu_that_refuses_all_but_xids_is_received_for_these(hosts: Hosts) -> None:
    state = hosts.state(1)
    state.gpus[0].unheard_types = CHANGES["recovery action"]
    host = hosts.open(state)
    state.gpus[0].pending_xid = 79
    assert [event["code"] for event in host.events()] == [79]
    assert host.ask("identify")["gpus"][0]["faults"] == {}


def test_an_agent_samples_and_inspects_at_once_when_the_driver_reports_of_a_change(
    server: Server, libraries: Libraries, tmp_path: Path
) -> None:
    """Its interval is five minutes: the counter behind the event would wait for that."""
    server.answer = every(300.0)
    state = map_state(tmp_path / "nvml.state", 1)
    errors, sram = INDEX["ecc_uncorrected_volatile"], "sram_threshold_exceeded"
    with agent(
        server,
        tmp_path / "a",
        program=DAEMON_OF_REAL_GPUS,
        FAKE_NVML_STATE=str(tmp_path / "nvml.state"),
        LD_LIBRARY_PATH=str(libraries.today),
    ):
        server.wait_for(lambda report: any(event.values.get(sram) == 0 for event in report.events))
        state.gpus[0].ecc[2] = 3
        state.gpus[0].sram_exceeded = 1
        state.gpus[0].pending_change = CHANGES["uncorrected ECC error"]
        _, report = server.wait_for(lambda report: any(gpu.values[errors] == 3 for gpu in report.gpus))
        assert not report.is_history
        server.wait_for(lambda report: any(event.values.get(sram) == 1 for event in report.events))
