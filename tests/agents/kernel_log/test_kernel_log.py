"""The kernel log as the agent follows it: each XID once in a boot, of the GPU at its address, at the kernel's own time.

A pipe in packet mode gives one record a read, as /dev/kmsg does; where the machine lets us, /dev/kmsg itself is used.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agents.freshness import SignsOfLife
from agents.kernel_log.kernel_log import KMSG, MAX_EVENTS, GpuAddresses, KernelLog, logged_until_now, open_kernel_log
from agents.kernel_log.log_reading import LogReading, LogSource
from agents.probes.interface import GpuIdentity, HostInventory, ProbeError, ProbeEvent
from agents.probes.profiles import PROFILES
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from agents.reports import event_report
from health.detectors.registry import judge_signal
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from health.evidence.suppression import outlasted
from health.standing.gpu_case import Move
from health.standing.standing import decide
from muster.domain.evidence.findings import EventKind, GpuSignal, Source
from muster.domain.ids import EvidenceId, GpuUuid
from muster.domain.states import Standing
from tests.health.case_factory import HOUR, NODE, POLICY, case

GPU = GpuUuid("GPU-0e7b1c2d-3f4a-5b6c-7d8e-9f0a1b2c3d4e")
INVENTORY = HostInventory(gpus=(GpuIdentity(uuid=GPU, index=0, pci_bus_id="00000000:05:00.0"),))
NOW_MS = 1_790_000_000_000
NOW_S = 5_000.0


class Kernel:
    """Writes records as the kernel does, into a pipe whose reading end has a path."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
        fcntl.fcntl(self._writing, fcntl.F_SETPIPE_SZ, 1 << 20)  # a page a record
        self.path = Path(f"/proc/self/fd/{self._reading}")
        self._sequence = 0

    def write(self, record: bytes) -> None:
        os.write(self._writing, record)

    def log(self, words: str, *, at_s: float = NOW_S, sequence: int | None = None, priority: int = 3) -> None:
        self._sequence = self._sequence + 1 if sequence is None else sequence
        record = f"{priority},{self._sequence},{int(at_s * 1e6)},-;{words}\n SUBSYSTEM=pci\n"
        self.write(record.encode())

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.close()


def following(kernel: Kernel, *, boot_id: str = "boot-1", position_file: Path | None = None) -> KernelLog:
    addresses = GpuAddresses(lambda: INVENTORY, clock_s=lambda: NOW_S)
    return KernelLog(
        addresses.at,
        boot_id,
        path=kernel.path,
        position_file=position_file,
        wall_ms=lambda: NOW_MS,
        clock_s=lambda: NOW_S,
    )


def test_an_xid_becomes_an_event_of_its_gpu_at_the_kernels_time(kernel: Kernel) -> None:
    with following(kernel) as log:
        kernel.log("usb 1-1: new device")
        kernel.log("NVRM: Xid (PCI:0000:05:00): 95, pid=7, name=python3, Uncontained", at_s=NOW_S - 90)
        (event,) = log.events(5)
    assert (event.kind, event.source, event.code, event.gpu_uuid) == (EventKind.XID, Source.KERNEL_LOG, 95, GPU)
    assert event.at_ms == NOW_MS - 90_000
    assert event.text == "Uncontained"
    assert event.origin == "kmsg:2:0000:05:00:xid:95:4910000000"


def test_an_xid_of_a_gpu_that_the_driver_does_not_name_reports_its_address(kernel: Kernel) -> None:
    with following(kernel) as log:
        kernel.log("NVRM: Xid (PCI:0000:06:00): 79, gone")
        (event,) = log.events(5)
    assert event.gpu_uuid is None
    assert "0000:06:00" in event.text


def test_an_sxid_is_an_event_of_the_host_about_no_gpu_and_reported_once_in_a_boot(
    kernel: Kernel, tmp_path: Path
) -> None:
    position = tmp_path / "kernel_log.json"
    line = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    with following(kernel, position_file=position) as log:
        kernel.log(line)
        (event,) = log.events(5)
        log.keep_position()
    assert (event.kind, event.source, event.code) == (EventKind.SXID, Source.KERNEL_LOG, 20034)
    assert event.gpu_uuid is None, "though a GPU has the switch's address"
    assert event.text == "Fatal, Link 30 LTSSM Fault Up"
    assert event.origin == "kmsg:1:0000:05:00.0:sxid:20034:5000000000"
    with following(kernel, position_file=position) as log:
        kernel.log(line, sequence=1)
        assert log.events(0) == ()


def test_what_the_kernel_states_of_the_host_is_an_event_of_it_once_a_minute(kernel: Kernel) -> None:
    words = "nvme nvme0: I/O 12 QID 3 timeout, reset controller"
    with following(kernel) as log:
        for at_s in (NOW_S - 90, NOW_S - 89, NOW_S - 20):
            kernel.log(words, at_s=at_s)
        kernel.log("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", priority=12)
        told = log.events(1)
    assert [(event.kind, event.text, event.gpu_uuid) for event in told] == [(EventKind.HOST_LOG, words, None)] * 2
    assert [event.at_ms for event in told] == [NOW_MS - 90_000, NOW_MS - 20_000]
    assert told[0].origin == "kmsg:1:nvme0:host:nvme_reset"


def test_what_the_network_cards_driver_states_is_an_event_of_the_host(kernel: Kernel) -> None:
    words = "mlx5_core 0000:3b:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count"
    with following(kernel) as log:
        kernel.log("mlx5_core 0000:3b:00.0: firmware version: 28.39.1002")
        kernel.log(words, at_s=NOW_S - 90)
        kernel.log(f"some program: {words}")
        kernel.log(words, priority=12)
        (event,) = log.events(1)
    assert (event.kind, event.source, event.gpu_uuid, event.text) == (
        EventKind.NIC_DRIVER,
        Source.KERNEL_LOG,
        None,
        words,
    )
    assert event.at_ms == NOW_MS - 90_000
    assert event.origin == "kmsg:2:0000:3b:00.0:nic:health"
    assert event_report(event, "boot-1", is_open=False).kind == "nic_driver"


def test_a_life_goes_on_where_the_last_one_has_kept_what_it_read(kernel: Kernel, tmp_path: Path) -> None:
    position = tmp_path / "kernel_log.json"
    words = "NVRM: Xid (PCI:0000:05:00): {}, x"
    with following(kernel, position_file=position) as log:
        kernel.log(words.format(31))
        assert [event.code for event in log.events(5)] == [31]
        log.keep_position()
        kernel.log(words.format(43))
        assert [event.code for event in log.events(5)] == [43]  # and dies before that is durable
    with following(kernel, position_file=position) as log:
        for sequence, code in enumerate((31, 43, 45), start=1):
            kernel.log(words.format(code), sequence=sequence)
        found = log.events(5)
        assert [event.code for event in found] == [43, 45]
        assert found[0].origin.startswith("kmsg:2:")


def test_another_boot_begins_again_and_so_does_a_position_that_cannot_be_read(kernel: Kernel, tmp_path: Path) -> None:
    position = tmp_path / "kernel_log.json"
    position.write_text('{"boot_id": "boot-1", "sequence": 700}', encoding="utf-8")
    with following(kernel, boot_id="boot-2", position_file=position) as log:
        kernel.log("NVRM: Xid (PCI:0000:05:00): 31, x")
        assert [event.code for event in log.events(5)] == [31]
    position.write_text("{half a", encoding="utf-8")
    with following(kernel, position_file=position) as log:
        kernel.log("NVRM: Xid (PCI:0000:05:00): 32, x", sequence=2)
        assert [event.code for event in log.events(5)] == [32]


def test_a_sentence_that_began_before_the_last_life_ended_is_understood(kernel: Kernel, tmp_path: Path) -> None:
    position = tmp_path / "kernel_log.json"
    with following(kernel, position_file=position) as log:
        kernel.log("NVRM: The NVIDIA GPU 0000:05:00.0")
        assert log.events(5) == ()
        log.keep_position()
    with following(kernel, position_file=position) as log:
        kernel.log("NVRM: The NVIDIA GPU 0000:05:00.0", sequence=1)
        kernel.log("NVRM: fallen off the bus and is not responding to commands.", sequence=2)
        assert [(event.code, event.gpu_uuid) for event in log.events(5)] == [(79, GPU)]


def test_a_storm_is_given_in_parts_and_whole(kernel: Kernel) -> None:
    with following(kernel) as log:
        for number in range(MAX_EVENTS + 50):
            kernel.log(f"NVRM: Xid (PCI:0000:05:00): 31, {number}")
        assert [len(log.events(0)) for _ in range(3)] == [MAX_EVENTS, 50, 0]


def test_rubbish_in_the_log_is_passed_over(kernel: Kernel) -> None:
    with following(kernel) as log:
        kernel.write(b"\x00\xff\xfe NVRM: Xid (PCI:0000:05:00): 31, no record\n")
        kernel.log("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): xyz, Fatal, Link 30")
        kernel.log("NVRM: Xid (PCI:0000:05:00): 48, \x1b[31m\x07x")
        assert [event.code for event in log.events(5)] == [48]


def test_a_driver_that_is_away_is_queried_again_and_a_gpu_keeps_its_place() -> None:
    clock = [0.0]
    answers: list[HostInventory | None] = [None, INVENTORY, HostInventory()]

    def identify() -> HostInventory:
        answer = answers.pop(0)
        if answer is None:
            raise ProbeError("the driver is away")
        return answer

    addresses = GpuAddresses(identify, clock_s=lambda: clock[0])
    assert addresses.at("0000:05:00") is None
    assert addresses.at("0000:05:00") is None  # within the minute the driver is not asked
    clock[0] = 61
    assert addresses.at("0000:05:00.0") == GPU
    clock[0] = 200
    assert addresses.at("0000:06:00") is None
    assert addresses.at("0000:05:00") == GPU
    assert answers == []


def test_a_log_that_cannot_be_opened_is_stated_and_gone_without(tmp_path: Path) -> None:
    assert open_kernel_log(lambda _pci: None, "boot-1", path=tmp_path / "nowhere") is None
    assert logged_until_now(INVENTORY, "boot-1", path=tmp_path / "nowhere") is None


def test_what_comes_while_we_read_is_dated_by_our_clock(kernel: Kernel) -> None:
    """The kernel's runs apart from it: here by a minute."""
    with following(kernel) as log:
        assert log.events(0) == ()
        kernel.log("NVRM: Xid (PCI:0000:05:00): 95, x", at_s=NOW_S - 60)
        assert [event.at_ms for event in log.events(5)] == [NOW_MS]


@pytest.mark.parametrize(
    ("priority", "words"),
    [
        (12, "NVRM: Xid (PCI:0000:05:00): 95, by a program that may write into the log"),
        (3, "oom-kill: task_memcg=/NVRM: Xid (PCI:0000:05:00): 95, x"),
        (3, "a[7]: NVRM: Xid (PCI:0000:05:00): 95, x"),
    ],
)
def test_only_the_drivers_own_words_count(kernel: Kernel, priority: int, words: str) -> None:
    with following(kernel) as log:
        kernel.log(words, priority=priority)
        kernel.log("NVRM: Xid (PCI:0000:05:00): 31, the driver's own")
        assert [event.code for event in log.events(5)] == [31]


def test_a_position_that_cannot_be_kept_stops_nothing(kernel: Kernel, tmp_path: Path) -> None:
    with following(kernel, position_file=tmp_path / "no/such/folder.json") as log:
        kernel.log("NVRM: Xid (PCI:0000:05:00): 31, x")
        assert len(log.events(5)) == 1
        log.keep_position()
        kernel.log("NVRM: Xid (PCI:0000:05:00): 43, x")
        assert [event.code for event in log.events(5)] == [43]


def test_the_position_is_kept_seldom_for_lines_of_others(kernel: Kernel, tmp_path: Path) -> None:
    position = tmp_path / "kernel_log.json"
    with following(kernel, position_file=position) as log:
        kernel.log("eth0: link up")
        assert log.events(5) == ()
        log.keep_position(now=False)
        assert not position.exists()
        log.keep_position()
        assert position.exists()


class Spooled:
    """In an observer's place: what it was given, and a fault of its own now and then."""

    def __init__(self, stop: threading.Event, last: int) -> None:
        self.codes: list[int | None] = []
        self.signs = SignsOfLife()
        self._stop = stop
        self._last = last
        self._fails = [True]

    def keep(self, events: tuple[ProbeEvent, ...]) -> int:
        if events and self._fails:
            self._fails.pop()
            raise OSError("the disk is full")
        self.codes += [event.code for event in events]
        if self._last in self.codes:
            self._stop.set()
        return len(events)


def test_a_turn_after_a_fault_reads_what_was_not_kept(kernel: Kernel, tmp_path: Path) -> None:
    """Each turn has a descriptor of its own, and begins where the last one had kept what it read."""
    stop = threading.Event()
    spooled: Any = Spooled(stop, last=43)
    probe = SimulatedProbe(PROFILES["h100"], simulated_uuids(1))
    reading = LogReading(probe, tmp_path, "boot-1", LogSource(kmsg=kernel.path))
    kernel.log("NVRM: Xid (PCI:0000:05:00): 31, x")
    with pytest.raises(OSError, match="the disk is full"):
        reading.run(spooled, stop)
    kernel.log("NVRM: Xid (PCI:0000:05:00): 31, x", sequence=1)  # the kernel gives all of its records to each reader
    kernel.log("NVRM: Xid (PCI:0000:05:00): 43, x")
    reading.run(spooled, stop)
    assert spooled.codes == [31, 43]


def test_a_log_that_cannot_be_opened_leaves_the_loop_at_rest(tmp_path: Path) -> None:
    stop = threading.Event()
    probe = SimulatedProbe(PROFILES["h100"], simulated_uuids(1))
    reading = LogReading(probe, tmp_path, "boot-1", LogSource(kmsg=tmp_path / "nowhere"))
    spooled: Any = Spooled(stop, last=0)
    thread = threading.Thread(target=reading.run, args=(spooled, stop))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def records_of_the_kernel() -> Iterator[bytes]:
    descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while record := os.read(descriptor, 64 << 10):
            yield record
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)


def test_the_kernels_own_log_is_read_and_what_a_program_writes_there_is_no_xid() -> None:
    pci = f"{os.getpid() % 0x10000:04x}:7f:1f"
    try:
        with KMSG.open("w", encoding="ascii") as kmsg:
            kmsg.write(f"NVRM: Xid (PCI:{pci}): 31, written by a test\n")
    except OSError as error:
        pytest.skip(f"THE KERNEL LOG CANNOT BE WRITTEN HERE, IT IS NOT FOLLOWED FOR REAL: {error}")
    assert any(pci.encode() in record for record in records_of_the_kernel())
    log = open_kernel_log(lambda _pci: None, "boot-1")
    assert log is not None
    with log:
        assert not [event for event in log.events(0) if pci in event.origin]


def test_a_storm_of_links_that_train_at_boot_quarantines_none_of_their_gpus() -> None:
    """NVSentinel issue 1701: 214 of 288 healthy hosts. As the kernel wrote it, to the judge's word."""
    moved, numbers = list[Move | None](), count()
    for host in range(288):
        known = EvidenceIndex()
        kernel = Kernel()
        with following(kernel, boot_id=f"boot-{host}") as log:
            if host < 214:
                kernel.log("NVRM: Xid (PCI:0000:05:00): 136, pid='<unknown>', NVLink: training failed", at_s=20.0)
                kernel.log("NVRM: Xid (PCI:0000:05:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08", at_s=21.5)
            events = log.events(0)
        kernel.close()
        assert len(events) == (2 if host < 214 else 0)
        for event in events:
            for finding in judge_signal(signal_of(event, f"boot-{host}"), POLICY):
                list(merge(finding, Place(known), POLICY, NOW_MS, lambda: EvidenceId(f"ev_{next(numbers)}")))
        for at_ms in (NOW_MS, NOW_MS + HOUR):
            settled = [outlasted(each, at_ms) for each in known.values()]
            moved += [decide(case(Standing.HEALTHY, *settled), at_ms, POLICY)]
    assert moved == [None] * 2 * 288


def signal_of(event: ProbeEvent, boot_id: str) -> GpuSignal:
    """As the server stores what the agent sent."""
    told = event_report(event, boot_id, is_open=False)
    return GpuSignal(
        told.event_id,
        EventKind(told.kind),
        Source(told.source),
        told.at_ms,
        NODE,
        GPU,
        told.code,
        told.text,
        told.values,
    )
