"""``muster agent scan`` as a real process: on simulated GPUs, on the fake driver, and without any driver."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agents.events.naming import Naming
from agents.host.events import HostPlaces, HostTeller
from agents.host_facts import wall_ms
from agents.probes.faults import Fault, write_fault
from agents.probes.interface import ProbeEvent
from agents.probes.profiles import PROFILES
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from agents.scan.scan import scan as look
from muster.cli.framework.exits import Exit
from muster.cli.host.agent_options import SimulatedModel
from muster.domain.evidence.findings import EventKind, Source
from tests.agents.fake_nvml.probed_host import Hosts, Libraries
from tests.agents.fake_nvml.state import Group, uuid_of
from tests.agents.host.trees import HostTree
from tests.warm_python import WarmPython

UUID = simulated_uuids(1)[0]
SERVER_PACKAGES = ("sqlalchemy", "psycopg", "alembic", "fastapi", "uvicorn", "celery", "redis", "numpy", "torch")
WITHOUT_SERVER = f"""
import sys
sys.modules.update(dict.fromkeys({SERVER_PACKAGES!r}))
from muster.cli import main
main()
"""


class Scan:
    """How the command starts: ``python`` is a warm interpreter for GPUs that are simulated. Others start cold."""

    python: ClassVar[Path | str] = sys.executable


@pytest.fixture(scope="module", autouse=True)
def _simulated_gpus_are_scanned_by_forks(warm_muster: WarmPython) -> Iterator[None]:
    Scan.python = warm_muster.path
    yield
    Scan.python = sys.executable


def scan(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Scan with these options. Variables of the environment are given to an interpreter that starts cold."""
    answer = subprocess.run(
        [
            Scan.python if "--simulated" in words and not variables else sys.executable,
            "-m",
            "muster",
            "agent",
            "scan",
            "--listen",
            "0.3",
            *words,
        ],
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "LD_LIBRARY_PATH": "", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert "Traceback" not in answer.stdout + answer.stderr
    return answer


def scan_faulty(tmp_path: Path, fault: Fault) -> tuple[dict[str, Any], str]:
    """The first GPU as JSON has it, and the scan as people read it; both say that there is a fault."""
    faults = tmp_path / "faults.json"
    write_fault(faults, fault)
    as_json = scan("--simulated", "h100", "--gpus", "2", "--faults", str(faults), "--json")
    as_table = scan("--simulated", "h100", "--gpus", "2", "--faults", str(faults))
    assert as_json.returncode == as_table.returncode == Exit.FAILED
    gpu: dict[str, Any] = json.loads(as_json.stdout)["gpus"][0]
    return gpu, as_table.stdout


@pytest.mark.parametrize("model", PROFILES)
def test_healthy_gpus_end_in_0_and_a_table_of_80_columns(model: str) -> None:
    answer = scan("--simulated", model, "--gpus", "72")
    assert answer.returncode == Exit.OK, answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 80
    assert "72 GPUs, simulated" in answer.stdout
    assert "no fault found" in answer.stdout


def test_a_terminal_of_plain_ascii_gets_the_table_too() -> None:
    answer = scan("--simulated", "h100", PYTHONIOENCODING="ascii")
    assert answer.returncode == Exit.OK
    assert "8 GPUs, simulated" in answer.stdout


def test_every_profile_can_be_scanned() -> None:
    assert {model.value for model in SimulatedModel} == set(PROFILES)


def test_what_is_unsupported_is_listed() -> None:
    answer = scan("--simulated", "a100", "--gpus", "4")
    assert "unsupported in slots 0-3: recovery_action, temperature_margin_c" in answer.stdout


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(gpu=UUID, kind="xid", code=95), "XID 95"),
        (Fault(gpu=UUID, kind="ecc_uncorrected", count=2), "2 uncorrected ECC errors"),
        (Fault(gpu=UUID, kind="row_remap_pending"), "waits for a GPU reset"),
        (Fault(gpu=UUID, kind="row_remap_failure"), "to be replaced"),
        (Fault(gpu=UUID, kind="heat", temperature_c=95), "8 °C past the temperature at which it slows itself down"),
        (Fault(gpu=UUID, kind="heat", temperature_c=90), "core at 90 °C, 85 °C at most"),
        (Fault(gpu=UUID, kind="lost"), "the driver no longer answers for this GPU"),
        (Fault(gpu=UUID, kind="late"), "no answer"),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_each_fault_ends_in_1_and_is_stated(tmp_path: Path, fault: Fault, words: str) -> None:
    gpu, table = scan_faulty(tmp_path, fault)
    assert any(words in finding["summary"] for finding in gpu["findings"])
    assert words in " ".join(table.split())
    assert gpu["state"] in table
    assert "2 GPUs, simulated" in table


def test_a_fault_reported_by_two_sources_is_one_xid(tmp_path: Path) -> None:
    gpu, table = scan_faulty(tmp_path, Fault(gpu=UUID, kind="xid", code=95, is_in_kernel_log=True))
    assert gpu["xids"] == [95]
    (found,) = [each for each in gpu["findings"] if each["fault"] == "xid:95"]
    assert set(found["sources"]) == {"nvml", "kernel_log"}
    assert (found["detector"], found["severity"], found["action"]) == ("xid", "CONDEMNING", "reset_gpu")
    assert (found["gpu_uuid"], found["waits"]) == (UUID, None)
    assert "(asks for reset_gpu)" in " ".join(table.split())


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_what_a_program_brings_about_is_shown_and_no_fault(tmp_path: Path, code: int) -> None:
    faults = tmp_path / "faults.json"
    write_fault(faults, Fault(gpu=UUID, kind="xid", code=code))
    answer = scan("--simulated", "h100", "--gpus", "2", "--faults", str(faults), "--json")
    assert answer.returncode == Exit.OK, answer.stdout
    gpu = json.loads(answer.stdout)["gpus"][0]
    assert (gpu["xids"], gpu["findings"], gpu["state"]) == ([code], [], "OK")


def test_a_host_without_a_driver_reports_what_it_can_and_ends_in_3(tmp_path: Path) -> None:
    sick = HostTree(tmp_path)
    sick.pressure(memory=60)
    sick.infiniband("1: DOWN")
    answer = scan("--host-root", str(tmp_path))
    assert answer.returncode == Exit.NOT_FOUND
    assert "there is no NVIDIA driver on this host" in answer.stderr
    assert "work waited for memory in 60% of the last minute" in " ".join(answer.stdout.split())
    assert "ports: mlx5_0/1 down" in answer.stdout
    as_json = scan("--host-root", str(tmp_path), "--json")
    assert as_json.returncode == Exit.NOT_FOUND
    (line,) = as_json.stdout.splitlines()
    report = json.loads(line)
    assert report["nvml"]["is_available"] is False
    assert "there is no NVIDIA driver" in report["nvml"]["fault"]
    assert (report["gpus"], report["is_healthy"]) == ([], False)
    assert report["host"]["ports"]["mlx5_0/1"]["state"] == 1
    assert "host_pressure:memory" in {found["fault"] for found in report["host"]["findings"]}


def test_a_real_driver_is_scanned(hosts: Hosts, libraries: Libraries, tmp_path: Path) -> None:
    state = hosts.state(8)
    state.gpus[3].unsupported = Group.SERIAL
    state.gpus[5].mig_mode = 1
    # The machine beneath may be as busy as it likes.
    quiet = HostTree(tmp_path / "host")
    quiet.pressure()
    environment = {"LD_LIBRARY_PATH": str(libraries.today), "FAKE_NVML_STATE": str(tmp_path / "nvml.state")}
    answer = scan("--json", "--host-root", str(quiet.root), **environment)
    report = json.loads(answer.stdout)
    assert answer.returncode == Exit.OK, report["host"]
    assert [gpu["uuid"] for gpu in report["gpus"]] == [uuid_of(index) for index in range(8)]
    assert report["gpus"][3]["identity"]["unsupported"] == ["serial"]
    assert report["gpus"][5]["state"] == "MIG"
    assert report["gpus"][0]["values"]["power_w"] == 312.5


def test_what_seldom_moves_and_the_host_are_shown(hosts: Hosts, libraries: Libraries, tmp_path: Path) -> None:
    hosts.state(2).gpus[1].inforom_code = 999
    environment = {"LD_LIBRARY_PATH": str(libraries.today), "FAKE_NVML_STATE": str(tmp_path / "nvml.state")}
    report = json.loads(scan("--json", **environment).stdout)
    slow = report["gpus"][0]["slow"]
    assert (slow["values"]["remap_banks_max"], slow["values"]["pcie_max_width"]) == (640, 16)
    assert slow["counters"]["ecc_corrected_dram_total"] == 0
    assert slow["links"]["17"]["crc_errors"] == 0
    assert report["host"]["values"]["found_gpus"] == 2
    assert report["host"]["values"]["disk_free_bytes"] > 0
    table = scan(**environment).stdout
    assert "unread in slot 1: inforom_valid: " in table
    assert "of its disk free" in table


def test_simulated_gpus_have_no_host_beneath() -> None:
    (line,) = scan("--simulated", "h100", "--gpus", "1", "--json").stdout.splitlines()
    report = json.loads(line)
    assert report["host"] is None
    assert report["gpus"][0]["slow"]["values"]["nvlink_links"] == 18


def test_what_the_detectors_state_of_states_is_stated_here(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    write_fault(faults, Fault(gpu=UUID, kind="state", values={"remap_banks_none": 3}))
    HostTree(tmp_path).pressure(memory=60)
    places = HostPlaces(root=tmp_path, folders=(tmp_path,))
    report = look(
        SimulatedProbe(PROFILES["h100"], simulated_uuids(2), faults_path=faults),
        now_ms=wall_ms(),
        listen_s=0,
        host_of=lambda _: HostTeller(Naming("scan"), places),
    )
    assert [[found.summary for found in gpu.findings] for gpu in report.gpus] == [
        ["3 memory banks have no spare row left"],
        [],
    ]
    assert report.host is not None
    (finding,) = report.host.findings
    assert "memory" in finding.summary
    assert "60%" in finding.summary
    assert not report.is_healthy


@pytest.mark.parametrize(("model", "reported"), [("h100", 1), ("a100", 0)])
def test_limits_are_those_of_the_gpus_model(tmp_path: Path, model: str, reported: int) -> None:
    """12 NVLinks are all that an A100 has, and two thirds of an H100's."""
    faults = tmp_path / "faults.json"
    write_fault(faults, Fault(gpu=UUID, kind="state", values={"nvlink_links": 12}))
    probe = SimulatedProbe(PROFILES[model], simulated_uuids(1), faults_path=faults)
    (gpu,) = look(probe, now_ms=wall_ms(), listen_s=0).gpus
    words = [found.summary for found in gpu.findings]
    assert words.count("the driver lists 12 NVLinks, the board has 18") == reported


def test_heat_is_judged_by_the_model_that_reports_no_maximum_of_its_own(tmp_path: Path) -> None:
    """90 °C is too hot for an A100, whose GPU_MAX is 85 °C by the policy, and not for an H100 at 95."""
    faults = tmp_path / "faults.json"
    write_fault(faults, Fault(gpu=UUID, kind="state", values={"temperature_max_c": 0}))
    found = {}
    for model in ("a100", "h100"):
        hot = SimulatedProbe(PROFILES[model], simulated_uuids(1), faults_path=faults)
        write_fault(faults, Fault(gpu=UUID, kind="heat", temperature_c=90))
        (found[model],) = look(hot, now_ms=wall_ms(), listen_s=0).gpus
    assert any("85 °C at most" in each.summary for each in found["a100"].findings)
    assert not any("at most" in each.summary for each in found["h100"].findings)


def test_what_is_logged_of_no_gpu_is_the_hosts(tmp_path: Path) -> None:
    HostTree(tmp_path).pressure()
    logged = (
        ProbeEvent(
            origin="1",
            kind=EventKind.NIC_DRIVER,
            source=Source.KERNEL_LOG,
            at_ms=wall_ms(),
            text="mlx5_core 0000:3b:00.0: health_care:152:(pid 9): unrecoverable hardware error",
        ),
        ProbeEvent(
            origin="2",
            kind=EventKind.SXID,
            source=Source.KERNEL_LOG,
            at_ms=wall_ms(),
            code=12028,
            text="Fatal, Link 32 egress non-posted PRIV error",
        ),
    )
    report = look(
        SimulatedProbe(PROFILES["h100"], simulated_uuids(1)),
        now_ms=wall_ms(),
        listen_s=0,
        logged=lambda _: logged,
        host_of=lambda _: HostTeller(Naming("scan"), HostPlaces(root=tmp_path, folders=(tmp_path,))),
    )
    assert report.host is not None
    card, switch = report.host.findings
    assert card.summary == "network card 0000:3b:00.0: its hardware is in an unrecoverable error"
    assert "SXid 12028" in switch.summary
    assert {*card.sources, *switch.sources} == {Source.KERNEL_LOG}
    assert (report.gpus[0].findings, report.is_healthy) == ((), False)


@pytest.mark.parametrize("url", ["localhost:9400", "ftp://127.0.0.1/metrics", "http://", "http://h:port/"])
def test_an_exporter_that_has_no_address_is_a_usage_error(url: str) -> None:
    answer = scan("--simulated", "h100", "--dcgm-exporter", url)
    assert answer.returncode == Exit.USAGE
    assert "--dcgm-exporter" in answer.stderr


def test_a_gpu_lost_before_the_scan_is_a_fault(hosts: Hosts, libraries: Libraries, tmp_path: Path) -> None:
    hosts.state(2).gpus[1].is_lost = 1
    answer = scan(LD_LIBRARY_PATH=str(libraries.today), FAKE_NVML_STATE=str(tmp_path / "nvml.state"))
    assert answer.returncode == Exit.FAILED
    assert "the GPU in slot 1 does not report its identity: GPU is lost" in answer.stdout


def test_a_driver_without_gpus_is_no_healthy_host(hosts: Hosts, libraries: Libraries, tmp_path: Path) -> None:
    hosts.state(0)
    answer = scan(LD_LIBRARY_PATH=str(libraries.today), FAKE_NVML_STATE=str(tmp_path / "nvml.state"))
    assert answer.returncode == Exit.NOT_FOUND
    assert "lists no GPU" in answer.stderr
    assert "0 GPUs" in answer.stdout


@pytest.mark.parametrize("words", [("--faults", "f.json"), ("--gpus", "4"), ("--simulated", "v100")])
def test_options_that_do_not_fit_are_a_usage_error(words: tuple[str, ...]) -> None:
    assert scan(*words).returncode == Exit.USAGE


def test_a_file_that_is_no_document_of_faults_is_refused(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text('{"faults": [{"gpu": "GPU-1", "kind": "gremlin"}]}')
    answer = scan("--simulated", "h100", "--faults", str(faults))
    assert answer.returncode == Exit.USAGE
    assert "gremlin" in answer.stderr


def test_a_scan_needs_no_package_of_the_server(tmp_path: Path) -> None:
    own = tmp_path / "policy.yaml"
    own.write_text("health: {clock_events: {harmful_samples: 5}}")
    words = ("agent", "scan", "--simulated", "h100", "--listen", "0", "--policy", str(own))
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT_SERVER, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert answer.returncode == Exit.OK, answer.stderr
