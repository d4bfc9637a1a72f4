"""Early reports of a program that only uses the processor, for the judge that has the readings of its GPUs."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from muster.domain.policy.watch import KnownLimits, WatchPolicy
from tests.workers.host.supervisor.attempt_case import Attempt
from tests.workers.host.watch.test_part_watch import first_of, part_of
from watch.forensics.documents import from_document, to_document
from watch.phases import Phase
from watch.progress.tracker import Overdue, Tracker
from watch.reports import HostReport, RankReport
from workers.host.watch.host_watch import message_of
from workers.host.watch.part import Part
from workers.host.watch.part_watch import Moving, PartWatch, Stalled
from workers.host.watch.rank_reader import RankReader

SPINS = "print('here', flush=True)\nwhile True: pass"
POLICY = WatchPolicy(known=KnownLimits.model_validate(dict.fromkeys(KnownLimits.model_fields, 0.4)), quiet_s=0.4)


@pytest.fixture
def spinning(attempt: Attempt) -> Part:
    """A program that printed once and then only uses the processor, with a GPU."""
    attempt.start(SPINS)
    attempt.wait_for_log("here")
    return replace(part_of(attempt), gpus=("GPU-1",))


def test_a_quiet_program_with_a_gpu_is_reported_as_one_whose_gpus_are_to_be_seen(spinning: Part) -> None:
    found = first_of(PartWatch(spinning, POLICY))
    assert isinstance(found, Stalled)
    assert (found.overdue.needs_gpus, found.report.needs_gpus, found.report.is_busy) == (True, True, True)
    (rank,) = found.report.ranks
    assert (rank.has_sensor, rank.still_s < POLICY.quiet_s < (rank.busy_quiet_s or 0.0)) == (False, True)
    sent = json.loads(json.dumps(message_of(found, "node_test")))
    assert from_document(sent["report"]) == found.report


def test_a_report_of_a_host_without_the_field_needs_none() -> None:
    document = to_document(HostReport("node-a", 1, (RankReport(0, Phase.STEP),), needs_gpus=True))
    assert from_document(document).needs_gpus
    del document["needs_gpus"]
    assert not from_document(document).needs_gpus


@pytest.mark.parametrize("why", ["no GPU", "no other reads it"])
def test_gpus_that_are_not_there_or_that_this_watch_reads_lead_to_no_early_report(spinning: Part, why: str) -> None:
    part = replace(spinning, gpus=()) if why == "no GPU" else spinning
    watched = PartWatch(part, POLICY, is_only_host=why != "no GPU")
    reader = RankReader(part, POLICY)
    quiet_s = 0.0
    while quiet_s < 3 * POLICY.quiet_s:
        assert watched.turn() is None
        (rank,) = reader.read()
        quiet_s = rank.busy_quiet_s or 0.0


def test_its_stacks_are_taken_again_since_it_may_work_and_those_of_a_stalled_one_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = WatchPolicy()
    watched = PartWatch(Part(tmp_path, "node_test", (0,), ("GPU-1",)), policy)
    early = Overdue(Phase.IMPORT, 0, policy.quiet_s, policy.quiet_s, (), is_busy=True, needs_gpus=True)
    now_s = 0.0
    taken: list[Overdue] = []

    def stated() -> Iterator[Overdue | None]:
        for minute in range(30):
            yield replace(early, still_s=policy.quiet_s + 60 * minute)
        for minute in range(3):
            yield Overdue(Phase.IMPORT, 0, policy.quiet_s, policy.quiet_s + 60 * minute, ())
        yield None

    def collect(_: PartWatch, overdue: Overdue, *_rest: object) -> HostReport:
        taken.append(overdue)
        return HostReport("node_test", len(taken), (), (), {}, (), overdue.is_busy, overdue.needs_gpus)

    words = stated()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(RankReader, "read", lambda *_: (RankReport(0, Phase.IMPORT),))
    monkeypatch.setattr(Tracker, "take", lambda *_: next(words))
    monkeypatch.setattr(PartWatch, "_collect", collect)
    sent: dict[int, tuple[int, bool]] = {}
    found: Stalled | Moving | None = None
    for minute in range(34):
        found = watched.turn()
        if isinstance(found, Stalled):
            sent[minute] = found.report.at_ms, found.report.needs_gpus
        now_s += 60.0
    assert isinstance(found, Moving)
    early_ones = {0: (1, True), 5: (1, True), 10: (1, True), 15: (2, True), 20: (2, True), 25: (2, True)}
    assert sent == {**early_ones, 30: (3, False), 31: (3, False), 32: (3, False)}
    assert [each.needs_gpus for each in taken] == [True, True, False]
