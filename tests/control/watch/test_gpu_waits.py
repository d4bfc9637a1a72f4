"""Bare commands whose GPUs spin in a collective, under a control plane: found by their agents' samples, and else not.

Both hosts report early that their ranks show nothing but processor time. The samples are of schema 2 as agents send
them, with the activity of tensor cores where an exporter profiles the GPU.
"""

import math
from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import select

from control.telemetry.codec import pack_block
from control.watch import stalls
from muster.db.models import StallReport, TelemetryBlock
from muster.domain.gpu.metrics import INDEX, NUM_METRICS, SCHEMA
from muster.domain.job.verdicts import VerdictReaction
from muster.domain.policy.watch import WatchPolicy
from muster.domain.states import Cause, JobState
from tests.control.watch.stalled_job import WATCH, StalledJob
from watch.phases import Phase
from watch.progress.tracker import Overdue
from watch.reports import Frame, HostReport, ProcessState, RankReport, StackSource
from workers.host.watch.host_watch import message_of
from workers.host.watch.part_watch import Moving, Stalled

POLICY = WatchPolicy()
RAN_S = 3 * 3600
QUIET_S = POLICY.quiet_s + 120
LONGEST_S = POLICY.unknown.longest_s
UNKNOWN = math.nan
Readings = tuple[float, float, float]
"""Utilisation, power, activity of tensor cores."""
TRAINS: Readings = (97.0, 640.0, 38.0)
WAITS: Readings = (100.0, 210.0, 0.0)
FRAME = Frame("train_step", "/srv/train.py", 61)


@pytest.fixture
def quiet(stalled: StalledJob) -> StalledJob:
    """A job that has run for some hours."""
    stalled.clock.advance(RAN_S)
    for host in stalled.hosts:
        host.beat()
    return stalled


def report(job: StalledJob, node_rank: int, *, uses_processor: bool = True) -> None:
    """Let a host report: its rank spins in a call into C, or sleeps."""
    of_rank = RankReport(
        node_rank,
        Phase.IMPORT,
        still_s=0.0 if uses_processor else QUIET_S,
        process=ProcessState.RUNNING if uses_processor else ProcessState.SLEEPING,
        cpu_share=1.0 if uses_processor else 0.0,
        stack=(FRAME,),
        stack_source=StackSource.PY_SPY,
        has_sensor=False,
        busy_quiet_s=QUIET_S,
    )
    flags = uses_processor, uses_processor
    overdue = Overdue(Phase.IMPORT, 0, POLICY.quiet_s, QUIET_S, (), *flags)
    stalled = Stalled(overdue, HostReport("liar", 1_000, (of_rank,), (), {}, (), *flags))
    assert job.send(node_rank, message_of(stalled, "liar")) == 0


def sample(job: StalledJob, node_rank: int, past: Readings, now: Readings) -> None:
    """Store two hours of samples, of which the newest quiet time differs."""
    host = job.fleet.attempts(job.job_id)[-1].hosts
    (part,) = (each for each in host if each.part.node_rank == node_rank)
    with job.units.begin(WATCH, stalls.JUDGE, quiet=True) as unit:
        for ago_s in range(5, 7_200, 60):
            row = np.full((1, NUM_METRICS), np.nan)
            names = ("utilisation_percent", "power_w", "tensor_active_percent")
            row[0, [INDEX[name] for name in names]] = now if ago_s < QUIET_S else past
            at = unit.now - timedelta(seconds=ago_s)
            unit.session.add(
                TelemetryBlock(
                    node_id=part.part.node_id,
                    boot_id=f"boot-{ago_s}",
                    seq=16,
                    at=at,
                    received_at=at,
                    schema=SCHEMA,
                    content=pack_block(list(part.gpus), row),
                )
            )


def judged_reports(job: StalledJob) -> list[bool]:
    with job.units.read() as session:
        rows = session.scalars(select(StallReport).order_by(StallReport.node_id))
        return [row.judged_at is not None for row in rows]


def test_gpus_that_spin_in_a_collective_end_the_attempt_and_blame_no_host(quiet: StalledJob) -> None:
    for node_rank in range(2):
        sample(quiet, node_rank, TRAINS, WAITS)
        report(quiet, node_rank)
    assert quiet.judge() == 1
    (verdict,) = quiet.verdicts()
    assert (verdict.cause, verdict.ranks, verdict.reaction) == ("unknown", [], VerdictReaction.RESTART)
    assert verdict.sentence.startswith(
        "Ranks 0 and 1 wait on the GPU, which has been utilised for 32 min without arithmetic, as in a collective; "
    )
    assert any("its GPU waits in a collective" in line for line in verdict.evidence)
    quiet.end()
    ended = quiet.fleet.attempts(quiet.job_id)[-1].attempt
    assert (ended.cause, quiet.state(), quiet.avoided()) == (Cause.HANG, JobState.RECOVERING, frozenset())


@pytest.mark.parametrize(
    ("past", "now"),
    [
        ((99.0, 590.0, 0.0), (100.0, 210.0, 0.0)),
        ((99.0, 590.0, UNKNOWN), (100.0, 210.0, UNKNOWN)),
        (TRAINS, TRAINS),
        (TRAINS, (100.0, 400.0, 0.0)),
        (TRAINS, (60.0, 210.0, 0.0)),
        (TRAINS, (0.0, 90.0, 0.0)),
        (TRAINS, (UNKNOWN, UNKNOWN, UNKNOWN)),
    ],
    ids=["fp64", "no exporter", "trains", "draws power", "used in part", "idle", "unknown"],
)
def test_a_silent_program_whose_gpu_may_work_is_left_alone(quiet: StalledJob, past: Readings, now: Readings) -> None:
    sample(quiet, 0, TRAINS, WAITS)
    sample(quiet, 1, past, now)
    for _ in range(2):
        for node_rank in range(2):
            report(quiet, node_rank)
        assert quiet.judge() == 1
        assert (quiet.verdicts(), quiet.state()) == ([], JobState.ACTIVE)
        assert quiet.judge() == 0, "each report is judged once"
        quiet.clock.advance(60)


def test_without_any_sample_there_is_no_verdict(quiet: StalledJob) -> None:
    for node_rank in range(2):
        report(quiet, node_rank)
    assert quiet.judge() == 1
    assert quiet.verdicts() == []


def test_a_sleeping_rank_among_spinning_ones_is_named_at_once(quiet: StalledJob) -> None:
    """Its GPU is idle, and it uses no processor: the others wait for it."""
    sample(quiet, 0, TRAINS, WAITS)
    sample(quiet, 1, TRAINS, (0.0, 90.0, 0.0))
    report(quiet, 0)
    report(quiet, 1, uses_processor=False)
    assert quiet.judge() == 1
    (verdict,) = quiet.verdicts()
    assert (verdict.ranks, verdict.cause) == ([1], "endless_python")
    assert verdict.sentence.endswith(" in train_step (/srv/train.py:61); rank 0 waits for it.")


def test_the_verdict_on_a_sleeping_host_waits_for_one_that_may_work_and_then_has_its_report(quiet: StalledJob) -> None:
    """The spinning rank has no readings of tensor cores, so it counts as a host that reports nothing."""
    sample(quiet, 0, (99.0, 590.0, UNKNOWN), (100.0, 210.0, UNKNOWN))
    report(quiet, 1, uses_processor=False)
    report(quiet, 0)
    assert quiet.judge() == 1
    assert quiet.verdicts() == []
    assert sorted(judged_reports(quiet)) == [False, True], "the sleeping host's report waits"
    assert quiet.judge() == 0
    for _ in range(2):
        quiet.clock.advance(LONGEST_S / 2 + 1)
        for host in quiet.hosts:
            host.beat()
        assert quiet.verdicts() == []
        report(quiet, 0)
        report(quiet, 1, uses_processor=False)
        assert quiet.judge() == 1
    (verdict,) = quiet.verdicts()
    assert verdict.ranks == [0, 1]
    assert verdict.evidence[0].startswith("rank 0 on alpha: it computes in the program's own code (1.00 of a core); ")


def test_a_host_that_moves_again_leaves_no_early_report(quiet: StalledJob) -> None:
    """Its stack would be of other work by the time of a later hang."""
    report(quiet, 0)
    quiet.judge()
    assert judged_reports(quiet) == [False], "the other host may work"
    report(quiet, 1)
    assert quiet.judge() == 1
    assert judged_reports(quiet) == [True, True]
    assert quiet.send(0, message_of(Moving(QUIET_S), "liar")) == 1, "its report was removed"
    assert judged_reports(quiet) == [True]
