"""Utilisation and power of GPUs in the windows of ranks: from what agents report to a verdict on a rank."""

from collections.abc import Mapping

import numpy as np
from sqlalchemy import select

from control.attempts.attempts import lock_attempt
from control.attempts.ranks import gpus_by_rank
from control.telemetry.node_readings import pack_readings
from control.watch.stragglers import JUDGE
from control.watch.types import VerdictRecord
from muster.db.models import NodeLatest, TrainingRank
from muster.domain.gpu.metrics import INDEX, NUM_METRICS
from muster.domain.job.verdicts import VerdictReaction
from muster.domain.principals import system_principal
from tests.control.watch.slow_job import STEPS, SlowJob
from watch.stragglers.windows import POWER, UTILISATION, RankWindows

USUAL: Mapping[str, float] = {"utilisation_percent": 99.0, "power_w": 600.0, "sm_clock_mhz": 1950.0}


def measure(slow: SlowJob, odd: Mapping[int, Mapping[str, float]] | None = None) -> None:
    """Store the newest readings of all GPUs of the job, as its hosts' agents report them now."""
    with slow.units.begin(system_principal("watch"), JUDGE, quiet=True) as unit:
        gpus = gpus_by_rank(unit, lock_attempt(unit, slow.attempt.id))
        for node_rank, host in enumerate(slow.by_rank):
            ranks = sorted(rank for rank in gpus if rank // 2 == node_rank)
            values = np.full((len(ranks), NUM_METRICS), np.nan)
            for row, rank in zip(values, ranks, strict=True):
                for name, value in {**USUAL, **(odd or {}).get(rank, {})}.items():
                    row[INDEX[name]] = value
            content = pack_readings([gpus[rank] for rank in ranks], values, [False] * len(ranks))
            latest = unit.session.get(NodeLatest, host.node_id) or NodeLatest(node_id=host.node_id, boot_id="boot-1")
            latest.at = latest.received_at = unit.now
            latest.gpu_readings = content
            unit.session.add(latest)


def train(slow: SlowJob, num_windows: int, odd: Mapping[int, Mapping[str, float]] | None = None) -> list[VerdictRecord]:
    slow.measure = lambda: measure(slow, odd)
    return slow.train(num_windows)


def windows(slow: SlowJob, rank: int) -> RankWindows:
    with slow.units.read() as session:
        row = session.scalar(select(TrainingRank).where(TrainingRank.rank == rank))
        assert row is not None
        return RankWindows.of_document(rank, row.windows)


def test_a_gpu_that_idles_while_its_peers_spin_has_a_verdict_that_stands_while_it_does(slow: SlowJob) -> None:
    assert train(slow, 6) == []
    idle = {3: {"utilisation_percent": 55.0, "power_w": 300.0}}
    (verdict,) = train(slow, 5, idle)
    assert (verdict.cause, verdict.ranks, verdict.reaction) == ("compute", [3], VerdictReaction.NOTIFY)
    assert verdict.node_id == slow.by_rank[1].node_id
    assert "GPU utilisation 55 %, usual 99 %, in 3 of 5 windows" in verdict.sentence
    (grown,) = train(slow, 12, idle)
    assert (grown.id, grown.ended_at) == (verdict.id, None)
    train(slow, 25)
    (ended,) = slow.verdicts()
    assert ended.ended_at is not None


def test_a_rank_with_low_power_waits_unless_its_clock_is_lower(slow: SlowJob) -> None:
    assert train(slow, 11, {3: {"power_w": 350.0}}) == []
    (verdict,) = train(slow, 1, {3: {"power_w": 350.0, "sm_clock_mhz": 1200.0}})
    assert (verdict.cause, verdict.ranks) == ("gpu", [3])


def test_a_window_has_the_readings_of_its_own_time_alone(slow: SlowJob) -> None:
    train(slow, 3)
    slow.measure = lambda: None
    slow.train(1)
    newest = windows(slow, 0).windows
    assert [each.get(POWER) for each in newest[-2:]] == [600.0, None]
    slow.more[1] = {"own_steps": STEPS - 1}
    train(slow, 2, {0: {"power_w": float("nan")}})
    readings = [windows(slow, rank).windows[-1].get(UTILISATION) for rank in range(4)]
    assert readings == [None, None, 99.0, 99.0], "one of two readings is missing; a step was left out"
    assert windows(slow, 2).model == windows(slow, 0).model != ""
