"""The newest faults of the kernel's log, read once for a hang under ``muster run``."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agents.kernel_log import journalctl, recent
from agents.kernel_log.journalctl import JournalPlace
from agents.kernel_log.kernel_log import GpuAddresses
from agents.kernel_log.recent import RecentFaults, recent_faults
from agents.probes.interface import HostInventory
from muster.domain.evidence.findings import EventKind
from tests.agents.kernel_log.test_journal import BOOT, FakeJournal
from tests.agents.kernel_log.test_kernel_log import GPU, INVENTORY, Kernel

XID = "NVRM: Xid (PCI:0000:05:00): {}, pid=7, name=python3, GPU has fallen off the bus."
MLX = "mlx5_core 0000:1a:00.0: wait_func:1152:(pid 27): MLX5 command timed out"


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    found = Kernel()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "_TURN_S", 0.1)
    monkeypatch.setattr(recent, "JOURNAL_WAIT_S", 1.0)


def faults(kmsg: Path, journal: JournalPlace, since_ms: int = 0) -> RecentFaults:
    return recent_faults(GpuAddresses(lambda: INVENTORY).at, BOOT, since_ms, kmsg=kmsg, journal=journal)


NONE = JournalPlace(program="/nowhere/journalctl")


def test_the_kernels_buffer_is_read_to_its_end_and_no_older_faults_count(kernel: Kernel) -> None:
    kernel.log(XID.format(48), at_s=1.0)
    kernel.log("eth0: link is up")
    kernel.log(XID.format(79), at_s=2.0)
    whole = faults(kernel.path, NONE)
    assert [(each.kind, each.gpu_uuid, each.code) for each in whole.events] == [
        (EventKind.XID, GPU, 48),
        (EventKind.XID, GPU, 79),
    ]
    assert whole.remark == ""
    kernel.log(XID.format(48), at_s=1.0)
    kernel.log(XID.format(79), at_s=2.0)
    assert [each.code for each in faults(kernel.path, NONE, whole.events[1].at_ms - 500).events] == [79]


def test_the_journal_is_read_where_the_kernels_own_is_closed(tmp_path: Path) -> None:
    journal = FakeJournal(tmp_path)
    journal.log(XID.format(79))
    found = faults(tmp_path / "nowhere", JournalPlace(program=str(journal.program)))
    assert [(each.gpu_uuid, each.code) for each in found.events] == [(GPU, 79)]
    assert found.remark == ""


def test_a_fault_behind_many_other_lines_is_found_and_lines_that_were_not_reached_are_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe holds 64 KiB: the lines before the fault come in many pieces."""
    monkeypatch.setattr(recent, "JOURNAL_WAIT_S", 60.0)
    monkeypatch.setattr(recent, "_TURN_S", 1.0)
    monkeypatch.setattr(journalctl, "_READS_A_TURN", 1)
    journal = FakeJournal(tmp_path)
    for number in range(2_000):
        journal.log(f"eth0: link is up, {number} times")
    journal.log(XID.format(79))
    place = JournalPlace(program=str(journal.program))
    found = faults(tmp_path / "nowhere", place)
    assert ([each.code for each in found.events], found.remark) == ([79], "")
    monkeypatch.setattr(recent, "_TURN_S", 60.0)
    times = iter((0.0, 0.0, 61.0))
    monkeypatch.setattr(recent, "time", SimpleNamespace(monotonic=lambda: next(times)))
    cut = faults(tmp_path / "nowhere", place)
    why = f"{journal.program}: its newest lines were not read within 60 s"
    assert (cut.events, cut.remark) == ((), f"the kernel's log was not read to its end: {why}")


def test_a_log_that_cannot_be_read_is_a_remark(tmp_path: Path) -> None:
    closed = tmp_path / "kmsg"
    why = f"the kernel's log was not read: {closed}: No such file or directory; "
    assert faults(closed, NONE).remark == f"{why}/nowhere/journalctl: No such file or directory"
    silent = FakeJournal(tmp_path)
    found = faults(closed, JournalPlace(program=str(silent.program)))
    assert (found.events, found.remark) == ((), f"{why}{silent.program} shows no line of the kernel")


def test_a_gpu_that_the_driver_does_not_name_stays_unnamed(kernel: Kernel) -> None:
    kernel.log(XID.format(79))
    (event,) = recent_faults(GpuAddresses(HostInventory).at, BOOT, 0, kmsg=kernel.path, journal=NONE).events
    assert event.gpu_uuid is None
