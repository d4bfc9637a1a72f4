"""Figures over the ledger: by hand, and as the simulator computes them of a played trace."""

from random import Random

import pytest

from ledger.accounts import Account
from ledger.measures import LEDGER_FIGURES, IdleTime, JobTime, Outage, Times, Window, figures
from simulator.traces.failing import Checkpoints, Failures
from simulator.traces.jobs import TraceJob
from simulator.traces.losses import lost_hours
from simulator.traces.playing import Played, estimates_of, play
from simulator.traces.report import report_of
from simulator.traces.rules import fifo, muster

HOUR_MS = 3_600_000
NUM_NODES, GPUS_PER_NODE = 6, 4


def test_figures_by_hand() -> None:
    used = {Account.PRODUCTIVE: 600, Account.REPLAYED: 100, Account.CLEANING: 100, Account.NO_CONTACT: 50}
    others = {Account.NO_CONTACT: 150, Account.PENDING: 400, Account.HOLD: 200, Account.FREE: 900, Account.RETIRED: 500}
    idle = IdleTime(1_500, on_used_ms=500, in_used_racks_ms=600, waiting_ms=600, waiting_on_used_ms=400)
    outages = (Outage(2 * HOUR_MS), Outage(HOUR_MS), Outage(None))
    window = Window(Times(used, others), JobTime(600, 1_200), idle, outages)
    assert figures(window) == {
        "allocation": 850 / 3_000,
        "utilisation": 750 / 3_000,
        "goodput": 600 / 3_000,
        "ettr": 0.5,
        "availability": (3_000 - 500 - 150) / (3_000 - 500),
        "idle_while_waiting": 600 / 3_000,
        "scattered": 400 / 600,
        "fragmented_nodes": 500 / 1_500,
        "fragmented_racks": 600 / 1_500,
        "mtbf": (3_000 - 650) / 3 / HOUR_MS,
        "mttr": 1.5,
    }


def test_a_figure_without_anything_to_divide_by_is_none() -> None:
    assert figures(Window(Times())) == {measure.name: None for measure in LEDGER_FIGURES}


def test_each_figure_has_its_formula_and_source_once() -> None:
    assert len({measure.name for measure in LEDGER_FIGURES}) == len(LEDGER_FIGURES)
    assert all(measure.formula and measure.source and measure.unit for measure in LEDGER_FIGURES)


def a_trace() -> list[TraceJob]:
    chance, at_s = Random(31), 0.0  # noqa: S311  # a simulation
    jobs: list[TraceJob] = []
    for _ in range(60):
        at_s += chance.expovariate(1 / 1_500)
        nodes = chance.choice((1, 1, 2, 4))
        jobs.append(
            TraceJob(at_s, chance.uniform(600, 20_000), nodes * GPUS_PER_NODE, nodes, GPUS_PER_NODE, "t", "spot")
        )
    return jobs


def as_window(jobs: list[TraceJob], played: Played) -> Window:
    """Return the time of a played trace by the ledger's accounts: all its jobs take whole nodes."""

    def in_ms(gpu_s: float) -> int:
        return round(gpu_s * 1_000)

    lost, work = lost_hours(jobs, played), played.work
    held = sum(job.gpus * busy_s for job, busy_s in zip(jobs, work.busy_s, strict=True))
    gone = 3_600 * (lost.work_done_again + lost.restarts + lost.checkpoints)
    used = {
        Account.PRODUCTIVE: in_ms(held - gone),
        Account.REPLAYED: in_ms(3_600 * lost.work_done_again),
        Account.RESTORING: in_ms(3_600 * lost.restarts),
        Account.SAVING: in_ms(3_600 * lost.checkpoints),
    }
    others = {
        Account.REPAIR: in_ms(3_600 * lost.repairs),
        Account.PENDING: in_ms(3_600 * (lost.idle_scattered + lost.idle_whole_nodes)),
        Account.FREE: in_ms(3_600 * lost.no_demand),
    }
    productive_ms = run_ms = 0
    for number, job in enumerate(jobs):
        gone_s = work.lost_s[number] + work.restarting_s[number] + work.stalled_s[number]
        productive_ms += in_ms(job.gpus * (work.busy_s[number] - gone_s))
        run_ms += in_ms(job.gpus * (played.finished_s[number] - played.started_s[number]))
    return Window(Times(used, others), JobTime(productive_ms, run_ms))


def test_the_ledgers_figures_are_the_simulators() -> None:
    jobs = a_trace()
    failures = Failures(400.0, repair_s=7_200, checkpoints=Checkpoints(every_s=900, stall_s=20, restart_s=120))
    estimates_s = estimates_of(jobs, error=1, seed=0)
    played = play(
        jobs, estimates_s, muster, failures=failures, seed=5, num_nodes=NUM_NODES, gpus_per_node=GPUS_PER_NODE
    )
    in_order = play(jobs, estimates_s, fifo, num_nodes=NUM_NODES, gpus_per_node=GPUS_PER_NODE)
    told = report_of(jobs, played, in_order, num_gpus=NUM_NODES * GPUS_PER_NODE)
    assert min(told.failures, told.lost_gpu_hours.work_done_again, told.fragmentation.idle_while_waiting) > 0
    found = figures(as_window(jobs, played))
    assert found["utilisation"] == pytest.approx(told.utilisation, rel=1e-6)
    assert found["goodput"] == pytest.approx(told.goodput, rel=1e-6)
    assert found["ettr"] == pytest.approx(told.ettr, rel=1e-6)
    assert found["idle_while_waiting"] == pytest.approx(told.fragmentation.idle_while_waiting, rel=1e-6)
