"""Dead loops of bare commands under a control plane: a verdict only where the agents' samples show idle GPUs."""

from datetime import timedelta

import numpy as np
import pytest

from control.attempts.attempts import lock_attempt
from control.telemetry.codec import pack_block
from control.watch import stalls
from control.watch.gpu_use import gpus_may_have_worked
from muster.db.models import TelemetryBlock
from muster.domain.gpu.metrics import INDEX, NUM_METRICS, SCHEMA
from muster.domain.job.verdicts import VerdictReaction
from muster.domain.policy.watch import WatchPolicy
from muster.domain.states import Cause, JobState
from tests.control.watch.stalled_job import WATCH, StalledJob, place_of
from watch.phases import Phase
from watch.progress.tracker import Overdue
from watch.reports import Frame, HostReport, ProcessState, RankReport, StackSource
from workers.host.watch.host_watch import message_of
from workers.host.watch.part_watch import Stalled

LIMIT_S = WatchPolicy().busy_quiet_s
QUIET_S = LIMIT_S + 60
FRAME = Frame("spin", "/srv/train.py", 7)


@pytest.fixture
def spinning(stalled: StalledJob) -> StalledJob:
    """A job that has run for longer than the limit."""
    stalled.clock.advance(QUIET_S)
    for host in stalled.hosts:
        host.beat()
    return stalled


def report_loop(job: StalledJob) -> None:
    """Let both hosts report: rank 0 waits, and rank 1 is in a loop."""
    for rank in range(2):
        of_rank = RankReport(
            rank,
            Phase.IMPORT,
            still_s=0.0 if rank else QUIET_S,
            process=ProcessState.RUNNING if rank else ProcessState.SLEEPING,
            cpu_share=1.0 if rank else 0.0,
            stack=(FRAME,) if rank else (),
            stack_source=StackSource.PY_SPY if rank else StackSource.NONE,
            has_sensor=False,
            busy_quiet_s=QUIET_S,
        )
        report = HostReport("liar", 1_000, (of_rank,), is_busy=rank == 1)
        overdue = Overdue(Phase.IMPORT, 0, LIMIT_S, QUIET_S, (), is_busy=rank == 1)
        assert job.send(rank, message_of(Stalled(overdue, report), "liar")) == 0


def sample(job: StalledJob, ago_s: list[float], utilisation: float | None = 0.0) -> None:
    """Store samples of the GPU of rank 1, as its host's agent sends them."""
    node_id, gpu = place_of(job)
    row = np.full((1, NUM_METRICS), np.nan)
    if utilisation is not None:
        row[0, INDEX["utilisation_percent"]] = utilisation
    with job.units.begin(WATCH, stalls.JUDGE, quiet=True) as unit:
        for each_s in ago_s:
            at = unit.now - timedelta(seconds=each_s)
            unit.session.add(
                TelemetryBlock(
                    node_id=node_id,
                    boot_id=f"boot-{each_s}-{utilisation}",
                    seq=16,
                    at=at,
                    received_at=at,
                    schema=SCHEMA,
                    content=pack_block([gpu], row),
                )
            )


EVERY_TEN_MINUTES = [float(each_s) for each_s in range(30, int(LIMIT_S), 600)]


def test_a_dead_loop_with_idle_gpus_ends_the_attempt_and_blames_no_host(spinning: StalledJob) -> None:
    sample(spinning, EVERY_TEN_MINUTES)
    report_loop(spinning)
    assert spinning.judge() == 1
    (verdict,) = spinning.verdicts()
    assert (verdict.cause, verdict.ranks, verdict.reaction) == ("dead_loop", [1], VerdictReaction.RESTART)
    assert " has used the processor for 6 h without output, I/O, " in verdict.sentence
    assert verdict.sentence.endswith(", in spin (/srv/train.py:7).")
    spinning.end()
    ended = spinning.fleet.attempts(spinning.job_id)[-1].attempt
    assert (ended.cause, spinning.state(), spinning.avoided()) == (Cause.HANG, JobState.RECOVERING, frozenset())


@pytest.mark.parametrize(
    ("worked_ago_s", "known_ago_s"),
    [
        ([40.0], EVERY_TEN_MINUTES),
        ([LIMIT_S / 2], EVERY_TEN_MINUTES),
        ([], EVERY_TEN_MINUTES[:3]),
        ([], []),
    ],
    ids=["works now", "worked hours ago", "unknown before", "unknown"],
)
def test_there_is_no_verdict_where_its_gpus_may_have_worked(
    spinning: StalledJob, worked_ago_s: list[float], known_ago_s: list[float]
) -> None:
    sample(spinning, known_ago_s)
    sample(spinning, worked_ago_s, utilisation=35.0)
    report_loop(spinning)
    assert spinning.judge() == 1
    assert spinning.verdicts() == []
    assert spinning.state() is JobState.ACTIVE
    assert spinning.judge() == 0, "each report is judged once"


def test_samples_without_a_utilisation_are_unknown(spinning: StalledJob) -> None:
    sample(spinning, EVERY_TEN_MINUTES, utilisation=None)
    report_loop(spinning)
    spinning.judge()
    assert spinning.verdicts() == []


def test_reports_of_other_stalls_are_judged_without_samples(stalled: StalledJob) -> None:
    """Reports of release 0.1.0 have no such field either."""
    stalled.stall_all()
    assert len(stalled.verdicts()) == 1
    with stalled.units.begin(WATCH, stalls.JUDGE, quiet=True) as unit:
        assert not gpus_may_have_worked(unit, lock_attempt(unit, stalled.attempt.id))
