"""The spool keeps events, counts what it gives up, and outlives crashes, full disks and unwritable ones."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from agents.spool.spool import Spool, SpoolInUseError, SpoolLimits
from muster.wire.telemetry import GapMarker, Report
from tests.agents.reports import BOOT, START_MS, Clock, event, sample

SMALL = SpoolLimits(max_bytes=64 << 10, segment_bytes=8 << 10)


def _drain(spool: Spool) -> tuple[list[Report], list[GapMarker]]:
    """Everything as an ideal server would get it."""
    reports: list[Report] = []
    gaps: list[GapMarker] = []
    while (entry := spool.oldest()) is not None:
        content = spool.content_of(entry)
        if content is not None:
            reports.append(msgspec.json.decode(content, type=Report))
            spool.acknowledge(entry.identity)
    while (gap_report := spool.gap_report(START_MS)) is not None:
        gaps.extend(gap_report.gaps)
        spool.acknowledge((gap_report.boot_id, gap_report.seq))
    return reports, gaps


def _seqs(reports: list[Report]) -> set[int]:
    return {report.seq for report in reports}


def _open(folder: Path, clock: Clock, limits: SpoolLimits | None = None) -> Spool:
    return Spool(folder, limits, monotonic_ms=clock.monotonic_ms)


def test_what_waits_outlives_the_agent_and_what_is_acknowledged_does_not(tmp_path: Path) -> None:
    clock = Clock()
    first = _open(tmp_path, clock)
    for seq in range(1, 11):
        first.append(sample(seq), "metrics")
    first.append(event(11), "events")
    first.acknowledge((BOOT, 3))
    first.close()
    second = _open(tmp_path, clock)
    assert second.newest_seq(BOOT) == 11
    reports, gaps = _drain(second)
    assert _seqs(reports) == set(range(1, 12)) - {3}
    assert gaps == []
    second.close()
    assert _open(tmp_path, clock).state().num_reports == 0


def test_events_come_before_node_state_and_that_before_samples(tmp_path: Path) -> None:
    spool = _open(tmp_path, Clock())
    spool.append(sample(1), "metrics")
    spool.append(sample(2, num_gpus=0), "health")
    spool.append(event(3), "events")
    reports, _ = _drain(spool)
    assert [report.seq for report in reports] == [3, 2, 1]


def test_a_spool_that_is_exactly_full_gives_nothing_up(tmp_path: Path) -> None:
    measured = _open(tmp_path / "measured", Clock())
    for seq in range(1, 4):
        measured.append(sample(seq), "metrics")
    spool = _open(tmp_path / "full", Clock(), SpoolLimits(max_bytes=measured.state().num_bytes))
    for seq in range(1, 4):
        spool.append(sample(seq), "metrics")
    assert spool.state().num_bytes == measured.state().num_bytes
    reports, gaps = _drain(spool)
    assert (_seqs(reports), gaps) == ({1, 2, 3}, [])


def test_an_hour_offline_with_a_full_spool_loses_no_event_and_counts_every_gap(tmp_path: Path) -> None:
    clock = Clock()
    spool = _open(tmp_path, clock, SMALL)
    events, samples = set(), set()
    for seq in range(1, 361):
        spool.append(sample(seq, clock.wall_ms()), "metrics")
        samples.add(seq)
        if seq % 9 == 0:
            spool.append(event(1000 + seq, clock.wall_ms()), "events")
            events.add(1000 + seq)
        assert spool.state().num_bytes <= SMALL.max_bytes
        clock.advance(10)
    reports, gaps = _drain(spool)
    whole = {report.seq for report in reports if report.gpus}
    stripped = {report.seq for report in reports if report.node is not None and not report.gpus}
    assert events <= _seqs(reports)
    assert {gap.priority for gap in gaps} <= {"metrics", "health"}
    counted = {
        priority: sum(gap.num_reports for gap in gaps if gap.priority == priority) for priority in ("metrics", "health")
    }
    assert counted["metrics"] == len(samples - whole)
    assert len(samples - whole - stripped) <= counted["metrics"]
    assert whole, "the newest readings are kept"
    assert len(stripped) > 100, "and of older samples the node's own state"


def test_the_hour_is_thinned_to_minutes_before_any_minute_is_lost(tmp_path: Path) -> None:
    clock = Clock()
    limits = SpoolLimits(max_bytes=100 << 10, segment_bytes=8 << 10)
    spool = _open(tmp_path, clock, limits)
    for seq in range(1, 361):
        spool.append(sample(seq, clock.wall_ms()), "metrics")
        clock.advance(10)
    reports, gaps = _drain(spool)
    minutes = {report.at_ms // 60_000 for report in reports if report.gpus}
    assert len(minutes) >= 60
    assert {gap.why for gap in gaps} == {"thinned out"}
    assert sum(gap.num_reports for gap in gaps) == 360 - len(reports)


def test_events_go_last_of_all_and_even_they_are_counted(tmp_path: Path) -> None:
    clock = Clock()
    spool = _open(tmp_path, clock, SpoolLimits(max_bytes=8 << 10, segment_bytes=1 << 10))
    spool.append(sample(1), "metrics")
    spool.append(sample(2, num_gpus=0), "health")
    for seq in range(100, 200):
        spool.append(event(seq), "events")
    reports, gaps = _drain(spool)
    assert {report.seq for report in reports} <= set(range(100, 200)), "all else went first"
    lost = sum(gap.num_reports for gap in gaps if gap.priority == "events")
    assert lost == 100 - len(reports) > 0


def test_reports_older_than_a_day_are_dropped_and_counted(tmp_path: Path) -> None:
    clock = Clock()
    spool = _open(tmp_path, clock)
    spool.append(sample(1, clock.wall_ms()), "metrics")
    clock.advance(86_401)
    spool.append(sample(2, clock.wall_ms()), "metrics")
    reports, gaps = _drain(spool)
    assert _seqs(reports) == {2}
    assert [(gap.first_seq, gap.last_seq, gap.num_reports, gap.why) for gap in gaps] == [(1, 1, 1, "too old")]


def test_a_segment_that_has_its_size_takes_no_more(tmp_path: Path) -> None:
    measured = _open(tmp_path / "measured", Clock())
    measured.append(sample(1), "metrics")
    sizes = measured.state().num_bytes, measured.state().num_bytes + 1
    numbers = list[int]()
    for size in sizes:
        folder = tmp_path / str(size)
        spool = _open(folder, Clock(), SpoolLimits(segment_bytes=size))
        for seq in (1, 2):
            spool.append(sample(seq), "metrics")
        numbers.append(len(list(folder.glob("*metrics*"))))
    assert numbers == [2, 1]


def test_the_disk_is_flushed_at_the_millisecond_it_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, flushed = Clock(), set[int]()
    spool = _open(tmp_path, clock, SpoolLimits(sync_within_ms=500))
    monkeypatch.setattr(os, "fdatasync", lambda _file: flushed.add(clock.passed_ms))
    for clock.passed_ms in (0, 499, 500):
        spool.append(sample(clock.passed_ms + 1), "metrics")
    assert flushed == {0, 500}


def test_ages_are_checked_at_the_millisecond_they_are_due(tmp_path: Path) -> None:
    clock = Clock()
    spool = _open(tmp_path, clock, SpoolLimits(max_age_ms=600))  # so each 60 ms
    for clock.passed_ms in (0, 599, 659):
        spool.append(sample(clock.passed_ms + 1, clock.wall_ms()), "metrics")
    assert _seqs(_drain(spool)[0]) == {600, 660}


def test_gap_markers_outlive_the_agent_and_keep_their_number_until_acknowledged(tmp_path: Path) -> None:
    clock = Clock()
    spool = _open(tmp_path, clock)
    spool.append(sample(16, clock.wall_ms()), "metrics")
    spool.set_aside((BOOT, 16), b"{}", "validation_failed")
    first = spool.gap_report(START_MS)
    spool.close()
    again = _open(tmp_path, clock)
    assert first is not None
    assert again.gap_report(START_MS + 5) == first
    again.acknowledge((BOOT, first.seq))
    assert again.gap_report(START_MS) is None
    assert first.seq % 16, "no ordinary report has this number"


def test_two_agents_never_work_in_one_folder(tmp_path: Path) -> None:
    spool = _open(tmp_path, Clock())
    with pytest.raises(SpoolInUseError):
        _open(tmp_path, Clock())
    spool.close()
    _open(tmp_path, Clock()).close()


def test_an_unwritable_folder_is_stated_and_reports_wait_in_memory() -> None:
    spool = _open(Path("/proc/muster-spool"), Clock(), SpoolLimits(memory_bytes=20_000))
    for seq in range(1, 41):
        spool.append(sample(seq), "metrics")
    spool.append(event(41), "events")
    state = spool.state()
    assert state.fault is not None
    reports, gaps = _drain(spool)
    assert 41 in _seqs(reports)
    assert sum(gap.num_reports for gap in gaps) == 41 - len(reports) > 0
    assert {gap.why for gap in gaps} == {"memory full"}


def test_a_refused_report_is_kept_apart_with_its_reason(tmp_path: Path) -> None:
    spool = _open(tmp_path, Clock())
    spool.append(sample(7), "metrics")
    spool.set_aside((BOOT, 7), b'{"seq":7}', "validation_failed: no")
    (kept,) = (tmp_path / "refused").glob("*.json")
    assert msgspec.json.decode(kept.read_bytes())["reason"] == "validation_failed: no"
    assert spool.state().num_refused == 1
    assert _drain(spool)[0] == []


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from agents.spool.spool import Spool, SpoolLimits
from tests.agents.reports import event, sample
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = Spool(Path(sys.argv[1]), SpoolLimits(memory_bytes=1 << 20), monotonic_ms=lambda: 0)
spool.append(sample(1), "metrics")
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
for seq in range(2, 20):
    spool.append(sample(seq), "metrics")
spool.append(event(20), "events")
full = spool.state()
assert full.fault is not None, full
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.append(event(21), "events")
after = spool.state()
assert after.fault is None, after
seen = set()
while (entry := spool.oldest()) is not None:
    assert spool.content_of(entry)
    seen.add(entry.seq)
    spool.acknowledge(entry.identity)
lost, gap = 0, spool.gap_report(0)
print(sorted(set(range(1, 22)) - seen), [] if gap is None else [marker.num_reports for marker in gap.gaps])
"""


def test_a_full_disk_stops_nothing_and_is_written_again_once_it_has_space(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path / "spool")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert done.returncode == 0, done.stderr
    missing, counted = done.stdout.splitlines()[-1].split("] [")
    assert missing in {"[1", "["}, "at most the first sample was given up for the event"
    assert counted.strip("[]") in {"", "1"}
