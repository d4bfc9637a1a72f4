"""A dcgm-exporter that answers as a test requests, with GPUs that NVML reports."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from agents.dcgm.exporter import BYTES_MAX, Exporter, ProbeWithDcgm, filled
from agents.dcgm.metrics import DcgmGpu
from agents.probes.faults import Fault, write_fault
from agents.probes.interface import GpuCheck
from agents.probes.profiles import A100
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from muster.domain.evidence.findings import Source
from muster.domain.gpu.metrics import METRICS, value_of
from muster.domain.ids import GpuUuid
from tests.recorded_server import Answer, RecordedServer, Requested, serving

NOW_MS = 1_790_000_000_000
UUIDS = simulated_uuids(2)
MARGIN = "temperature_margin_c"


def scraped(uuid: str, **values: float) -> str:
    return "".join(
        f'{name}{{gpu="0",UUID="{uuid}",modelName="NVIDIA A100"}} {value}\n' for name, value in values.items()
    )


HEALTHY = "".join(scraped(uuid, DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION=2, DCGM_FI_DEV_GPU_TEMP=7) for uuid in UUIDS)


@dataclass
class Host:
    """Two A100s, which have no recovery action by NVML, and an exporter."""

    faults: Path
    server: RecordedServer
    text: Callable[[], Answer] = lambda: Answer(raw=HEALTHY.encode())
    probes: list[ProbeWithDcgm] = field(default_factory=list)

    def check(self) -> tuple[GpuCheck, ...]:
        if not self.probes:
            probe = SimulatedProbe(A100, UUIDS, faults_path=self.faults)
            self.probes.append(ProbeWithDcgm(probe, Exporter(f"{self.server.url}/metrics", deadline_s=1.0)))
        return self.probes[0].check(NOW_MS)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made: list[Host] = []

    def answer(_requested: Requested, _num: int) -> Answer:
        return made[0].text()

    with serving(answer) as server:
        made.append(Host(tmp_path / "faults.json", server))
        yield made[0]
        for probe in made[0].probes:
            probe.close()


def test_dcgm_fills_what_nvml_does_not_report_and_nothing_else(host: Host) -> None:
    for check in host.check():
        assert value_of(check.values, "recovery_action") == 2
        assert value_of(check.values, "temperature_c") != 7, "NVML reports it, and has precedence"
        assert check.unsupported == {MARGIN}
        assert check.from_dcgm == {"recovery_action"}
        assert value_of(check.values, MARGIN) is None


def test_tensor_activity_is_dcgms_where_the_exporter_profiles_and_unknown_where_not(host: Host) -> None:
    active, blank = scraped(UUIDS[0], DCGM_FI_PROF_PIPE_TENSOR_ACTIVE=0.375), scraped(UUIDS[1], DCGM_FI_DEV_GPU_TEMP=7)
    host.text = lambda: Answer(raw=(active + blank).encode())
    profiled, other = host.check()
    assert value_of(profiled.values, "tensor_active_percent") == 37.5
    assert profiled.from_dcgm == {"tensor_active_percent"}
    assert value_of(other.values, "tensor_active_percent") is None
    assert "tensor_active_percent" not in other.from_dcgm | profiled.unsupported | other.unsupported
    host.text = lambda: Answer(status=500)
    assert [value_of(check.values, "tensor_active_percent") for check in host.check()] == [None, None]


def test_counters_that_both_report_are_not_added(host: Host) -> None:
    write_fault(host.faults, Fault(gpu=UUIDS[0], kind="ecc_uncorrected", count=3, at_ms=1))
    host.text = lambda: Answer(raw=scraped(UUIDS[0], DCGM_FI_DEV_ECC_DBE_VOL_TOTAL=3).encode())
    assert value_of(host.check()[0].values, "ecc_uncorrected_volatile") == 3


def with_last_xid(host: Host, *codes: int) -> list[tuple[int | None, Source, GpuUuid | None]]:
    """Return the events of one check after the other while the first GPU's gauge shows these codes."""
    told = []
    for code in codes:
        text = HEALTHY + scraped(UUIDS[0], DCGM_FI_DEV_XID_ERRORS=code)
        host.text = partial(Answer, raw=text.encode())
        host.check()
        told += [(each.code, each.source, each.gpu_uuid) for each in host.probes[0].events(0.0)]
    return told


def test_an_xid_that_the_exporter_had_before_we_checked_is_no_event(host: Host) -> None:
    assert with_last_xid(host, 79, 79) == []


def test_a_change_of_the_exporters_last_xid_is_an_xid_reported_by_dcgm_once(host: Host) -> None:
    assert with_last_xid(host, 0, 79, 79, 48) == [(79, Source.DCGM, UUIDS[0]), (48, Source.DCGM, UUIDS[0])]


def test_a_dcgm_that_started_again_reports_no_xid_until_there_is_one(host: Host) -> None:
    assert with_last_xid(host, 79, 0, 79) == [(79, Source.DCGM, UUIDS[0])]


def test_an_xid_while_the_exporter_was_away_is_not_dated_now(host: Host) -> None:
    assert with_last_xid(host, 0) == []
    host.text = lambda: Answer(status=500)
    host.check()
    assert with_last_xid(host, 79) == []


def test_an_xid_of_another_hosts_gpu_is_nobodys_here(host: Host) -> None:
    for code in (0, 79):
        text = HEALTHY + scraped("GPU-elsewhere", DCGM_FI_DEV_XID_ERRORS=code)
        host.text = partial(Answer, raw=text.encode())
        host.check()
    assert host.probes[0].events(0.0) == ()


def test_a_reading_that_failed_once_is_not_filled() -> None:
    """The exporter's may be half a minute old: a counter that goes back and forth looks like errors that rise."""
    values = tuple(None if metric.name == "ecc_uncorrected_volatile" else 0.0 for metric in METRICS)
    failed = GpuCheck(
        gpu_uuid=UUIDS[0], index=0, at_ms=1, values=values, faults={"ecc_uncorrected_volatile": "it did not answer"}
    )
    told = {str(UUIDS[0]): DcgmGpu(UUIDS[0], values={"ecc_uncorrected_volatile": 4.0})}
    assert filled(told, failed) == failed
    lacking = replace(failed, faults={}, unsupported=frozenset({"ecc_uncorrected_volatile"}))
    assert value_of(filled(told, lacking).values, "ecc_uncorrected_volatile") == 4


@pytest.mark.parametrize("kind", ["lost", "late"])
def test_a_gpu_that_nvml_cannot_reach_is_filled_with_nothing(host: Host, kind: str) -> None:
    write_fault(host.faults, Fault(gpu=UUIDS[0], kind=kind, at_ms=1))  # type: ignore[arg-type]  # both are kinds
    ill, well = host.check()
    assert set(ill.values) == {None}
    assert value_of(well.values, "recovery_action") == 2


def test_gpus_of_another_host_are_none_here(host: Host) -> None:
    host.text = lambda: Answer(raw=scraped("GPU-elsewhere", DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION=1).encode())
    assert [value_of(check.values, "recovery_action") for check in host.check()] == [None, None]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(status=500), "it answers 500"),
        (Answer(status=302, headers={"Location": "http://127.0.0.1:1/"}), "it answers 302"),
        (Answer(raw=b""), "no sample of any GPU"),
        (Answer(raw=bytes(range(256)) * 99), "no sample of any GPU"),
        (Answer(raw=b"#" * (BYTES_MAX + 1)), "larger than 8 MiB"),
    ],
    ids=["failing", "elsewhere", "empty", "rubbish", "huge"],
)
def test_an_exporter_that_states_nothing_of_use_leaves_nvml_alone_and_is_named_once(
    host: Host, answer: Answer, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host.text = lambda: answer
    for _ in range(3):
        assert [value_of(check.values, "recovery_action") for check in host.check()] == [None, None]
    host.text = lambda: Answer(raw=HEALTHY.encode())
    assert value_of(host.check()[0].values, "recovery_action") == 2
    said = "".join(capsys.readouterr())
    assert said.count("dcgm_exporter_says_nothing") == 1
    assert words in said
    assert "dcgm_exporter_answers_again" in said


def test_an_exporter_that_hangs_holds_up_no_check_for_long_and_is_not_requested_meanwhile(host: Host) -> None:
    let_go = threading.Event()

    def hang() -> Answer:
        let_go.wait(60)
        return Answer(raw=HEALTHY.encode())

    host.text = hang
    try:
        assert value_of(host.check()[0].values, "recovery_action") is None
        assert value_of(host.check()[0].values, "temperature_c") is not None
    finally:
        let_go.set()


def test_an_exporter_that_is_not_there_is_reported_in_a_sentence() -> None:
    exporter = Exporter("http://127.0.0.1:9/metrics")
    assert exporter.gpus() == {}
    exporter.close()
