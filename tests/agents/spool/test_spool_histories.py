"""Any history of appends, deliveries, refusals and restarts: each report is delivered, waits, or is counted."""

import tempfile
from pathlib import Path

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agents.spool.records import PRIORITIES, Priority
from agents.spool.spool import Spool, SpoolLimits
from muster.wire.telemetry import Report
from tests.agents.reports import START_MS, Clock, event, sample
from tests.scaled import examples

LIMITS = SpoolLimits(max_bytes=24 << 10, segment_bytes=3 << 10, max_age_ms=3_600_000, memory_bytes=4 << 10)


class SpoolHistories(RuleBasedStateMachine):
    """``appended``: seq → priority. ``whole``: seqs that the server has with all that they held."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.spool = self._open()
        self.num = 0
        self.appended: dict[int, Priority] = {}
        self.whole: set[int] = set()
        self.stripped: set[int] = set()
        self.counted = dict.fromkeys(PRIORITIES, 0)

    def _open(self) -> Spool:
        return Spool(Path(self.folder.name) / "spool", LIMITS, monotonic_ms=self.clock.monotonic_ms)

    def _append(self, priority: Priority) -> None:
        self.num += 1
        seq = self.num * 16
        made = {
            "events": event(seq, self.clock.wall_ms()),
            "health": sample(seq, self.clock.wall_ms(), num_gpus=0),
            "metrics": sample(seq, self.clock.wall_ms()),
        }[priority]
        self.spool.append(made, priority)
        self.appended[seq] = priority

    @rule(priority=st.sampled_from(PRIORITIES), count=st.integers(1, 12), pause_s=st.sampled_from([0, 10, 60]))
    def append(self, priority: Priority, count: int, pause_s: int) -> None:
        for _ in range(count):
            self._append(priority)
            self.clock.advance(pause_s)

    @rule(count=st.integers(1, 8))
    def deliver(self, count: int) -> None:
        for _ in range(count):
            entry = self.spool.oldest()
            if entry is None:
                return
            content = self.spool.content_of(entry)
            assert content is not None
            report = msgspec.json.decode(content, type=Report)
            is_whole = self.appended[report.seq] != "metrics" or bool(report.gpus)
            (self.whole if is_whole else self.stripped).add(report.seq)
            self.spool.acknowledge(entry.identity)

    @rule()
    def refuse(self) -> None:
        entry = self.spool.oldest()
        if entry is not None:
            self.spool.set_aside(entry.identity, b"{}", "validation_failed")

    @rule()
    def report_gaps(self) -> None:
        while (report := self.spool.gap_report(START_MS)) is not None:
            for gap in report.gaps:
                self.counted[gap.priority] += gap.num_reports
            self.spool.acknowledge((report.boot_id, report.seq))

    @rule()
    def restart(self) -> None:
        self.spool.close()
        self.spool = self._open()

    @precondition(lambda self: self.num > 0)
    @rule()
    def sleep_past_the_age_cap(self) -> None:
        self.clock.advance(3_700)

    @invariant()
    def stays_under_the_cap(self) -> None:
        assert self.spool.state().num_bytes <= LIMITS.max_bytes

    def teardown(self) -> None:
        while self.spool.oldest() is not None:
            self.deliver(1)
        self.report_gaps()
        missing = {
            priority: sum(1 for seq, found in self.appended.items() if found == priority and seq not in self.whole)
            for priority in PRIORITIES
        }
        assert self.counted["events"] == missing["events"]
        assert self.counted["metrics"] == missing["metrics"]
        # A sample that was first stripped and then dropped is counted in both of its classes.
        assert missing["health"] <= self.counted["health"] <= missing["health"] + missing["metrics"]
        self.spool.close()
        self.folder.cleanup()


TestSpoolHistories = SpoolHistories.TestCase
TestSpoolHistories.settings = settings(max_examples=examples(25), stateful_step_count=25)
