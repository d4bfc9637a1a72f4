"""The journal as the agent follows it: a real child in journalctl's place, and journalctl where the machine has one."""

import json
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import pytest

from agents.freshness import SignsOfLife
from agents.host_facts import current_boot_id
from agents.kernel_log.journal import Journal, open_journal
from agents.kernel_log.journalctl import MAX_LINE_BYTES, JournalPlace
from agents.kernel_log.log_reading import JOURNAL_POSITION_FILE, LogReading, LogSource, log_source_of
from agents.probes.interface import ProbeEvent
from agents.probes.profiles import PROFILES
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.ids import GpuUuid
from muster.settings import SettingsError, load_settings

BOOT: Final = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
GPU: Final = GpuUuid("GPU-0e7b1c2d-3f4a-5b6c-7d8e-9f0a1b2c3d4e")
NOW_MS: Final = 1_790_000_000_000
PATIENCE_S: Final = 20.0
XID: Final = "NVRM: Xid (PCI:0000:05:00): {}, pid=7, name=python3, Words"
FAKE: Final = """#!{python}
import json, pathlib, sys, time
folder = pathlib.Path(__file__).parent
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + chr(10))
after = [each.partition("=")[2] for each in sys.argv if each.startswith("--after-cursor=")]
if after and after[0] == "refused":
    sys.exit("Failed to seek to cursor: Invalid argument")
skips = bool(after)
with (folder / "lines").open("rb") as lines:
    while True:
        line = lines.readline()
        if not line:
            if (folder / "ends").exists():
                (folder / "ends").unlink()
                sys.exit("it ends")
            time.sleep(0.02)
            continue
        if not skips:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        elif json.loads(line).get("__CURSOR") == after[0]:
            skips = False
"""


class FakeJournal:
    """A journal in a file, and a program that follows it as journalctl does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "journalctl"
        self.program.write_text(FAKE.format(python=sys.executable), encoding="utf-8")
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self._lines = folder / "lines"
        self._lines.touch()
        self._count = 0

    def log(self, message: object, *, boot: str = BOOT, facility: str = "0", **more: object) -> None:
        self._count += 1
        entry = {
            "__CURSOR": f"c{self._count}",
            "__REALTIME_TIMESTAMP": str(NOW_MS * 1000 - 60_000_000),
            "__MONOTONIC_TIMESTAMP": "95000000",
            "_SOURCE_MONOTONIC_TIMESTAMP": str(90_000_000 + self._count),
            "_BOOT_ID": boot.replace("-", ""),
            "_TRANSPORT": "kernel",
            "SYSLOG_FACILITY": facility,
            "MESSAGE": message,
        }
        self.write(json.dumps(entry | more).encode())

    def write(self, line: bytes) -> None:
        with self._lines.open("ab") as file:
            file.write(line + b"\n")

    def ends(self) -> None:
        (self.folder / "ends").touch()

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text(encoding="utf-8").splitlines()]

    def followed(self, *, position_file: Path | None = None, boot_id: str = BOOT) -> Journal:
        place = JournalPlace(program=str(self.program))
        return Journal(lambda _pci: GPU, boot_id, place, position_file=position_file, wall_ms=lambda: NOW_MS)


@pytest.fixture
def fake(tmp_path: Path) -> FakeJournal:
    return FakeJournal(tmp_path)


def reported(journal: Journal, count: int) -> list[ProbeEvent]:
    """Return so many events, and any that came with them."""
    found = list[ProbeEvent]()
    until = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < until, found
        found += journal.events(0.2)
    return found


def test_an_xid_becomes_an_event_at_the_kernels_own_time(fake: FakeJournal) -> None:
    """Journald took the line five seconds after the kernel wrote it."""
    fake.log("usb 1-1: new device")
    fake.log(XID.format(95))
    with fake.followed() as journal:
        (event,) = reported(journal, 1)
    assert (event.kind, event.source, event.code, event.gpu_uuid) == (EventKind.XID, Source.KERNEL_LOG, 95, GPU)
    assert event.at_ms == NOW_MS - 60_000 - 5_000 + 0
    assert event.values == {"since_boot_s": 90.000002}
    assert event.origin == "journal:90000002:0000:05:00:xid:95"
    (call,) = fake.calls()
    matches = ["_TRANSPORT=kernel", "_BOOT_ID=0f1e2d3c4b5a69788796a5b4c3d2e1f0"]
    assert call == ["--merge", "--output=json", "--follow", "--no-tail", "--no-pager", *matches]


def test_bytes_long_lines_and_rubbish_are_read_past_or_read(fake: FakeJournal) -> None:
    fake.log(list(XID.format(31).encode() + b"\xff"))
    fake.log(list(b"x" * 1_000_000))
    fake.log("y" * 1_000_000)
    fake.write(b'"' + b"z" * (MAX_LINE_BYTES + 10) + b'"')
    fake.write(b"{no json")
    fake.write(b"[" * 100_000)
    fake.write(b"7")
    fake.log(None)
    fake.log([300, "x"])
    fake.log(XID.format(43), __REALTIME_TIMESTAMP="a", _SOURCE_MONOTONIC_TIMESTAMP=7)
    with fake.followed() as journal:
        first, second = reported(journal, 2)
    assert (first.code, second.code) == (31, 43)
    assert second.at_ms == NOW_MS


def test_another_boots_lines_and_what_programs_write_are_no_news(fake: FakeJournal) -> None:
    fake.log(XID.format(13), boot="f" * 32)
    fake.log(XID.format(31), facility="1")
    fake.log(XID.format(32), _TRANSPORT="syslog")
    fake.log("a[7]: " + XID.format(43))
    fake.log(XID.format(95))
    with fake.followed() as journal:
        assert [event.code for event in reported(journal, 1)] == [95]


def test_a_life_goes_on_after_what_the_last_one_has_kept(fake: FakeJournal, tmp_path: Path) -> None:
    position = tmp_path / "kernel_journal.json"
    fake.log(XID.format(31))
    with fake.followed(position_file=position) as journal:
        reported(journal, 1)
        journal.keep_position()
        fake.log(XID.format(43))
        reported(journal, 1)  # and dies before that is durable
    fake.log(XID.format(45))
    with fake.followed(position_file=position) as journal:
        assert [event.code for event in reported(journal, 2)] == [43, 45]
    with fake.followed(position_file=position, boot_id="another") as journal:
        deadline = time.monotonic() + 30
        while len(fake.calls()) < 3 and time.monotonic() < deadline:
            assert journal.events(0.1) == ()
    assert [call[-3] for call in fake.calls()] == ["--no-pager", "--after-cursor=c1", "--no-pager"]


def test_journalctl_that_ends_is_started_again_where_it_was(fake: FakeJournal) -> None:
    fake.log(XID.format(31))
    with fake.followed() as journal:
        reported(journal, 1)
        fake.ends()
        while len(fake.calls()) < 2:
            assert journal.events(0.2) == ()
        fake.log(XID.format(43))
        assert [event.code for event in reported(journal, 1)] == [43]
    assert fake.calls()[1][-3] == "--after-cursor=c1"


def test_a_cursor_that_is_taken_no_more_begins_the_boot_again_under_the_same_ids(
    fake: FakeJournal, tmp_path: Path
) -> None:
    position = tmp_path / "kernel_journal.json"
    position.write_text(json.dumps({"boot_id": BOOT, "cursor": "refused"}), encoding="utf-8")
    fake.log(XID.format(31))
    with fake.followed(position_file=position) as journal:
        (event,) = reported(journal, 1)
    assert event.origin.startswith("journal:90000001:")


def test_a_storm_is_reported_in_parts_and_whole(fake: FakeJournal) -> None:
    for _ in range(1000):
        fake.log(XID.format(74))
    with fake.followed() as journal:
        found = reported(journal, 1000)
    assert len({event.origin for event in found}) == 1000


def test_no_journalctl_is_stated_once_and_gone_without(tmp_path: Path) -> None:
    place = JournalPlace(program=str(tmp_path / "nowhere"))
    assert open_journal(lambda _pci: None, BOOT, place) is None


class Spooled:
    """In an observer's place."""

    def __init__(self, stop: threading.Event) -> None:
        self.codes: list[int | None] = []
        self.signs = SignsOfLife()
        self._stop = stop

    def keep(self, events: tuple[ProbeEvent, ...]) -> int:
        self.codes += [event.code for event in events]
        if events:
            self._stop.set()
        return len(events)


def test_the_journal_is_followed_where_the_kernels_log_cannot_be_read(fake: FakeJournal, tmp_path: Path) -> None:
    stop = threading.Event()
    spooled: Any = Spooled(stop)
    fake.log(XID.format(79))
    source = LogSource(kmsg=tmp_path / "nowhere", journal=JournalPlace(program=str(fake.program)))
    LogReading(SimulatedProbe(PROFILES["h100"], simulated_uuids(1)), tmp_path, BOOT, source).run(spooled, stop)
    assert spooled.codes == [79]
    assert json.loads((tmp_path / JOURNAL_POSITION_FILE).read_bytes()) == {"boot_id": BOOT, "cursor": "c1"}


def test_the_setting_names_the_source(tmp_path: Path) -> None:
    kmsg = tmp_path / "kmsg"
    kmsg.touch()
    assert log_source_of("auto", kmsg) == LogSource(kmsg, JournalPlace())
    assert log_source_of("kmsg", kmsg) == LogSource(kmsg)
    assert log_source_of("journal", kmsg) == LogSource(journal=JournalPlace())
    folder = log_source_of(str(tmp_path)).journal
    file = log_source_of(str(kmsg)).journal
    assert folder is not None
    assert file is not None
    assert folder.command("b", None)[-3] == f"--directory={tmp_path}"
    assert file.command("b", "c")[-4:-2] == [f"--file={kmsg}", "--after-cursor=c"]


def test_a_setting_that_is_no_source_is_refused_with_what_is_accepted() -> None:
    with pytest.raises(SettingsError, match="MUSTER_KERNEL_LOG: must be auto, kmsg, journal, or the absolute path"):
        load_settings({"MUSTER_KERNEL_LOG": "dmesg"})


def test_the_real_journalctl_takes_our_options_and_reports_this_boots_lines() -> None:
    if shutil.which("journalctl") is None:
        pytest.skip("NO journalctl HERE: IT IS NOT FOLLOWED FOR REAL")
    command = [each for each in JournalPlace().command(current_boot_id().replace("-", ""), None) if each != "--follow"]
    found = subprocess.run(command, capture_output=True, timeout=60, check=False)  # our own options
    assert b"option" not in found.stderr, "it takes all of them"
    first = found.stdout.partition(b"\n")[0]
    if not first:
        pytest.skip("NO JOURNAL FILES HERE: THE REAL journalctl HAS NO KERNEL LINE TO FOLLOW")
    entry = json.loads(first)
    assert {"__CURSOR", "_BOOT_ID", "__REALTIME_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "MESSAGE"} <= entry.keys()
    assert entry["_TRANSPORT"] == "kernel"


def test_a_journal_without_a_line_is_waited_for_by_the_real_journalctl(tmp_path: Path) -> None:
    if shutil.which("journalctl") is None:
        pytest.skip("NO journalctl HERE: IT IS NOT FOLLOWED FOR REAL")
    with Journal(lambda _pci: GPU, BOOT, JournalPlace(tmp_path)) as journal:
        began_s = time.monotonic()
        while time.monotonic() - began_s < 1:
            assert journal.events(0.2) == ()


def test_what_the_kernel_states_of_the_host_is_reported_from_the_journal_too(fake: FakeJournal) -> None:
    words = "EXT4-fs (nvme0n1p2): Remounting filesystem read-only"
    fake.log(words, facility="3")
    fake.log(words)
    fake.log(words)
    with fake.followed() as journal:
        (event,) = reported(journal, 1)
    assert (event.kind, event.text) == (EventKind.HOST_LOG, words)
    assert event.origin == "journal:90000002:nvme0n1p2:host:read_only"
