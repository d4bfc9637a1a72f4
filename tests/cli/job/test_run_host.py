"""What ``muster run`` reads of its machine: GPUs, an exporter, and faults of the kernel's log that explain a hang."""

from types import SimpleNamespace

import pytest

from agents.kernel_log import recent
from agents.kernel_log.recent import RecentFaults
from agents.probes import nvml
from agents.probes.interface import GpuIdentity, HostInventory, ProbeEvent
from agents.probes.profiles import H100
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from muster.cli.job.run_host import kernel_faults_of, readings_of
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.ids import GpuUuid
from tests.recorded_server import Answer, serving
from watch.forensics.judge import judge_hang
from watch.phases import Phase
from watch.reports import HostReport, RankReport

OWN, OTHER = GpuUuid("GPU-0e7b1c2d-3f4a-5b6c-7d8e-9f0a1b2c3d4e"), GpuUuid("GPU-1e7b1c2d-3f4a-5b6c-7d8e-9f0a1b2c3d4e")
MLX = "mlx5_core 0000:1a:00.0: wait_func:1152:(pid 27): MLX5 command timed out"


def event(kind: EventKind, text: str, gpu: GpuUuid | None = None, code: int | None = None) -> ProbeEvent:
    origin = f"kmsg:{text}:{code}"
    return ProbeEvent(
        origin=origin, kind=kind, source=Source.KERNEL_LOG, at_ms=5_000, gpu_uuid=gpu, code=code, text=text
    )


def read(monkeypatch: pytest.MonkeyPatch, found: RecentFaults) -> tuple[tuple[str, ...], tuple[str, ...]]:
    inventory = HostInventory(gpus=tuple(GpuIdentity(uuid=each, index=at) for at, each in enumerate((OWN, OTHER))))
    probe = SimpleNamespace(identify=lambda: inventory, close=lambda: None)
    monkeypatch.setattr(nvml, "open_nvml_probe", lambda: probe)
    since: list[int] = []

    def recent_faults(_gpu_at: object, _boot_id: str, since_ms: int) -> RecentFaults:
        since.append(since_ms)
        return found

    monkeypatch.setattr(recent, "recent_faults", recent_faults)
    stated = kernel_faults_of((str(OWN),))(4_000)
    assert since == [4_000]
    return stated


def test_faults_of_own_gpus_and_of_the_host_explain_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    events = (
        event(EventKind.XID, "of another job's GPU", OTHER, 79),
        event(EventKind.XID, "a row was remapped", OWN, 63),
        event(EventKind.XID, "GPU has fallen off the bus.", OWN, 79),
        event(EventKind.NIC_DRIVER, MLX),
    )
    lines, remarks = read(monkeypatch, RecentFaults(events))
    assert lines == (f"NVRM: Xid ({OWN}): 79, GPU has fallen off the bus.", MLX)
    assert remarks == ()
    ranks = tuple(RankReport(number, Phase.STEP, gpu=gpu) for number, gpu in enumerate((str(OTHER), str(OWN))))
    verdict = judge_hang([HostReport("", 5_000, ranks, lines)])
    assert (verdict.cause, verdict.ranks, verdict.is_measured) == ("gpu", (1,), True)
    assert "fallen off the bus" in verdict.sentence
    assert verdict.evidence[0] == f"kernel: {lines[0]}"


def test_a_closed_log_is_stated_with_the_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, remarks = read(monkeypatch, RecentFaults(remark="the kernel's log was not read: /dev/kmsg: closed"))
    assert (lines, remarks) == ((), ("the kernel's log was not read: /dev/kmsg: closed",))
    verdict = judge_hang([HostReport("", 5_000, (RankReport(0, Phase.STEP),), lines, notes=remarks)])
    assert verdict.evidence[-1] == remarks[0]


def test_readings_of_own_gpus_have_the_exporters_activity_of_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = simulated_uuids(2)
    monkeypatch.setattr(nvml, "open_nvml_probe", lambda: SimulatedProbe(H100, (own, other)))
    without = readings_of(("0",))()
    assert set(without) == {"gpu.0.utilisation", "gpu.0.power_w"}
    field = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
    text = f'{field}{{gpu="0",UUID="{own}"}} 0.375\n{field}{{gpu="1",UUID="{other}"}} 0.5\n'
    with serving(lambda *_: Answer(raw=text.encode())) as server:
        read_now = readings_of((str(own),), f"{server.url}/metrics")
        found = [read_now() for _ in range(3)]
        assert [each[f"gpu.{own}.tensor_active_percent"] for each in found] == [37.5] * 3
        assert len(found[0]) == 3, "of its own GPU alone"
        assert len(server.requested) == 1, "the exporter reads its GPUs less often"


def test_an_exporter_that_does_not_answer_leaves_the_activity_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "open_nvml_probe", lambda: SimulatedProbe(H100, simulated_uuids(1)))
    assert set(readings_of(("0",), "http://127.0.0.1:9/metrics")()) == {"gpu.0.utilisation", "gpu.0.power_w"}
