"""``muster simulate`` plays a trace of jobs on a simulated fleet, under a rule of the queue."""

from __future__ import annotations

import csv
import gzip
import io
import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import print_line, require_place, wrote_json
from muster.cli.framework.tables import Column, table_lines
from muster.cli.sim import scenarios
from muster.cli.sim.drawn import require_folder, write_charts
from muster.cli.sim.failure_options import document_of, requested_failures
from muster.cli.sim.played_rule import Fleet, PlayedRule, StatedWallTimes, rule_of, stated_wall_times
from muster.cli.sim.simulate_options import (
    Arrivals,
    AsJson,
    CheckpointEvery,
    CheckpointStall,
    EstimateError,
    FailureRate,
    GpusPerNode,
    Nodes,
    NodesPerRack,
    Plots,
    QueueRule,
    Quotas,
    Repair,
    Restart,
    Rule,
    ScenarioFile,
    Seed,
    Shares,
    Trace,
    WallTimes,
)
from simulator.traces.by_policy import PolicyQueue, UnplayableError
from simulator.traces.course import EndlessError
from simulator.traces.failing import Failures
from simulator.traces.jobs import MOST_FAULTS, SURPLUS, TraceError, TraceJob, jobs_of, require_columns
from simulator.traces.playing import estimates_of, play
from simulator.traces.plots import plots_of
from simulator.traces.report import Report, report_of
from simulator.traces.rules import QUEUE_RULES

_GZIP: Final = b"\x1f\x8b"
_CLASSES: Final = (
    Column("GPUS", lambda item: _span(item["min_gpus"], item["max_gpus"])),
    Column("JOBS", lambda item: f"{item['jobs']:,}"),
    Column("MEAN WAIT s", lambda item: f"{item['mean_wait_s']:,.0f}"),
    Column("P95 WAIT s", lambda item: f"{item['p95_wait_s']:,.0f}"),
)


def simulate(
    context: typer.Context,
    *,
    trace: Trace = None,
    scenario: ScenarioFile = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = 8,
    nodes_per_rack: NodesPerRack = None,
    policy: Rule = QueueRule.MUSTER.value,
    estimate_error: EstimateError = 1.0,
    wall_times: WallTimes = None,
    quota: Quotas = None,
    share: Shares = None,
    arrivals: Arrivals = 1.0,
    failures: FailureRate = "0",
    checkpoint_every: CheckpointEvery = None,
    checkpoint_stall: CheckpointStall = None,
    restart: Restart = None,
    repair: Repair = None,
    seed: Seed = 0,
    plots: Plots = None,
    as_json: AsJson = None,
) -> int:
    """Play a trace of jobs on a simulated fleet, under a rule of the queue; or a scenario, by the planner.

    For a trace, nodes are equal, and jobs work as long as it states; only --failures makes something fail
    (docs/traces.md). A scenario defines its own fleet.
    """
    require_place(as_json, trace, scenario)
    if scenario is not None:
        if beside := _other_options(context, "scenario", "as_json"):
            advice = f"Its file says what the fleet is: leave out {', '.join(beside)}."
            raise CommandError("--scenario stands alone", advice, Exit.USAGE)
        scenarios.write_result(scenarios.decisions_of(scenario), as_json)
        return Exit.OK
    if trace is None or nodes is None:
        raise CommandError(
            "neither a trace nor a scenario is given", "Give --trace and --nodes, or --scenario.", Exit.USAGE
        )
    if not all(map(math.isfinite, (estimate_error, arrivals))):
        raise CommandError("a number must be finite", "Neither nan nor inf.", Exit.USAGE)
    require_folder(plots)
    what_fails = requested_failures(
        failures, every_s=checkpoint_every, stall_s=checkpoint_stall, restart_s=restart, repair_s=repair
    )
    fleet = Fleet(nodes, gpus_per_node, nodes_per_rack)
    rule = rule_of(policy, quota or (), share or (), fails=what_fails.per_1000_node_days > 0)
    stated = stated_wall_times(wall_times, estimate_error)
    _write_trace(_Options(trace, fleet, rule, stated, estimate_error, arrivals, seed), what_fails, plots, as_json)
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _Options:
    trace: Path
    fleet: Fleet
    rule: PlayedRule
    stated: StatedWallTimes
    estimate_error: float
    arrivals: float
    seed: int


def _write_trace(options: _Options, what_fails: Failures, plots: Path | None, as_json: Path | None) -> None:
    """Play it; write the requested files, and print the rest."""
    fleet = options.fleet
    jobs = _jobs_of(options.trace, fleet.nodes, fleet.gpus_per_node, options.arrivals)
    report, pace = _played(jobs, options, what_fails)
    told: dict[str, object] = {
        "trace": options.trace.name,
        "policy": options.rule.name,
        "wall_times": options.stated.name,
        **asdict(fleet),
        "arrivals": options.arrivals,
        "estimate_error": options.estimate_error,
        "seed": options.seed,
        "failing": document_of(what_fails),
    }
    if plots is not None:
        write_charts(plots, plots_of(report))
    _write_result({**told, **asdict(report), **pace}, report, as_json)


def _other_options(context: typer.Context, *names: str) -> list[str]:
    """Return the options that were given, by their text, except the named ones."""
    sources = {each: context.get_parameter_source(each) for each in context.params}
    given = [each for each, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    words = {each.name: each.opts[0] for each in context.command.params}
    return sorted(words[name] for name in given if name not in names)


def _played(jobs: Sequence[TraceJob], options: _Options, what_fails: Failures) -> tuple[Report, dict[str, Any]]:
    """Return the report, compared with FIFO on the same trace, and the speed of the simulation."""
    started_s, fleet = time.perf_counter(), options.fleet
    estimates_s = estimates_of(jobs, error=options.estimate_error, seed=options.seed)
    played_by = partial(
        play,
        jobs,
        options.stated.as_estimates(jobs, estimates_s),
        num_nodes=fleet.nodes,
        gpus_per_node=fleet.gpus_per_node,
        nodes_per_rack=fleet.nodes_per_rack,
        failures=what_fails,
        seed=options.seed,
    )
    try:
        rule = options.rule
        if rule.policy is None:
            played = played_by(QUEUE_RULES[rule.name])
        else:
            known = options.stated.run_times(jobs, estimates_s)
            played = PolicyQueue(
                jobs, known, rule.policy, rule.tenancy, fleet.nodes, fleet.gpus_per_node, fleet.nodes_per_rack
            ).play()
        pace = {"events": played.num_events, "wall_s": round(time.perf_counter() - started_s, 3)}
        in_order = played_by(QUEUE_RULES["fifo"])
    except EndlessError as fault:
        raise CommandError(f"the simulation has no end: {fault}", code=Exit.INVALID) from None
    except UnplayableError as fault:
        raise CommandError(f"{options.rule.name}: {fault}", code=Exit.INVALID) from None
    num_gpus = fleet.nodes * fleet.gpus_per_node
    return report_of(jobs, played, in_order, num_gpus=num_gpus, nodes_per_rack=fleet.nodes_per_rack), pace


def _jobs_of(trace: Path, nodes: int, gpus_per_node: int, arrivals: float) -> list[TraceJob]:
    """Return the trace's jobs. Raises CommandError: the file cannot be read, or has a fault that it names."""
    try:
        with _rows_of(trace) as rows:
            try:
                require_columns(rows.fieldnames)
                return jobs_of(
                    rows,
                    num_nodes=nodes,
                    gpus_per_node=gpus_per_node,
                    arrivals=arrivals,
                    line_of=partial(_line_of, rows),
                )
            except csv.Error as fault:
                words = f"{trace}: no CSV by line {rows.line_num} ({fault}): is a quote left open?"
                raise CommandError(words, code=Exit.INVALID) from None
    except FileNotFoundError:
        raise CommandError(f"{trace}: there is no such file", code=Exit.NOT_FOUND) from None
    except TraceError as fault:
        rest = len(fault.faults) - MOST_FAULTS
        named = [*fault.faults[:MOST_FAULTS], *([f"and {rest:,} more faults"] if rest > 0 else [])]
        raise CommandError(f"{trace}: " + "; ".join(named), code=Exit.INVALID) from None
    except (OSError, EOFError, zlib.error) as fault:
        raise CommandError(f"{trace} cannot be read: {fault}", code=Exit.INVALID) from None
    except UnicodeDecodeError as fault:
        raise CommandError(f"{trace}: no CSV in UTF-8 ({fault})", code=Exit.INVALID) from None


def _line_of(rows: csv.DictReader[str], row: Mapping[str, object]) -> int:
    """Return a row's line as an editor counts, with blank lines; for a row with line breaks in quotes, the first."""
    return rows.line_num - sum(value.count("\n") for value in row.values() if isinstance(value, str))


@contextmanager
def _rows_of(trace: Path) -> Iterator[csv.DictReader[str]]:
    with trace.open("rb") as raw:
        is_packed = raw.peek(len(_GZIP))[: len(_GZIP)] == _GZIP  # a pipe cannot be read twice
        with (
            gzip.GzipFile(fileobj=raw) if is_packed else raw as content,
            io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as text,
        ):
            yield csv.DictReader(text, restkey=SURPLUS, strict=True)


def _write_result(document: dict[str, Any], report: Report, as_json: Path | None) -> None:
    if wrote_json(document, as_json):
        return
    for line in table_lines(_CLASSES, document["wait_by_gpus"], is_wide=True):
        print_line(line)
    print_line(
        f"{report.jobs:,} jobs: wait {report.mean_wait_s:,.0f} s (p95 {report.p95_wait_s:,.0f}), "
        f"completion {report.mean_jct_s:,.0f} s after {report.makespan_s / 86_400:,.1f} d in all; "
        f"{report.utilisation:.1%} of the GPUs' time used; {report.starved:,} starved. Simulated: nothing ran."
    )
    idle = report.fragmentation
    print_line(
        f"Idle while anybody waited: {idle.idle_while_waiting:.1%} of the GPUs' time, {idle.scattered:.0%} of it on "
        f"nodes partly in use; {idle.split_gangs:,} of {idle.rack_sized_gangs:,} gangs that fit a rack ran in "
        f"several; fairness between {len(report.by_tenant):,} tenants {report.fairness:.2f}."
    )
    if report.failures or report.interruptions:
        lost = report.lost_gpu_hours
        print_line(
            f"{report.failures:,} nodes failed, jobs were interrupted {report.interruptions:,} times, "
            f"{sum(one.reclaims for one in report.reclaims):,} of them by reclaims: goodput {report.goodput:.1%}, "
            f"ETTR {report.ettr:.3f}. GPU-hours: {lost.work_done_again:,.0f} of work done again, {lost.restarts:,.0f} "
            f"to restart, {lost.checkpoints:,.0f} for checkpoints, {lost.repairs:,.0f} in repair."
        )


def _span(least: int, most: int | None) -> str:
    if most is None:
        return f"≥ {least}"
    return str(least) if least == most else f"{least}–{most}"
