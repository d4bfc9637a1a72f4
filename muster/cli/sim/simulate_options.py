"""Options of ``muster simulate`` by name."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from muster.domain.policy.quantities import MOST_S


class QueueRule(StrEnum):
    FIFO = "fifo"
    SKIP = "skip"
    SJF = "sjf"
    EASY = "easy"
    CONSERVATIVE = "conservative"
    MUSTER = "muster"


Trace = Annotated[
    Path | None,
    typer.Option(help="CSV, or CSV in gzip: submit_s, gpus, duration_s; nodes, vc or tenant, tier if known."),
]
ScenarioFile = Annotated[
    Path | None, typer.Option(help="YAML: a fleet, its jobs and what happens (docs/scenarios.md).")
]
Nodes = Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Nodes of the fleet, for a trace.")]
GpusPerNode = Annotated[int, typer.Option(min=1, max=1024, help="GPUs of each.")]
NodesPerRack = Annotated[
    int | None,
    typer.Option(min=1, max=1_000_000, help="Nodes of a rack: gangs of whole nodes then prefer one rack."),
]
Rule = Annotated[
    str,
    typer.Option(
        metavar="RULE|FILE",
        help=f"The rule of the queue: {', '.join(QueueRule)} (ours); or a policy file, by which the planner plays.",
    ),
]
EstimateError = Annotated[
    float, typer.Option(min=1, max=1000, help="A job is expected to take up to so many times more, or less.")
]
WallTimes = Annotated[
    str | None,
    typer.Option(
        metavar="exact|unknown|FACTOR",
        help="What jobs state: their duration, nothing, or so many times their duration; without --estimate-error.",
    ),
]
Quotas = Annotated[
    list[str] | None,
    typer.Option(
        "--quota",
        metavar="TENANT/TIER=GUARANTEED[:CEILING]",
        help="GPUs of a tenant in a tier, with a policy file; repeat it.",
    ),
]
Shares = Annotated[
    list[str] | None,
    typer.Option("--share", metavar="TENANT=WEIGHT", help="A tenant's weight, with a policy file; 1 by default."),
]
Arrivals = Annotated[
    float, typer.Option(min=0.0001, max=10_000, help="Stretch the times of submission: 0.2 is five times denser.")
]
FailureRate = Annotated[
    str, typer.Option(help="Of 1,000 nodes a day: a number, or a published rate: rsc-1, rsc-2 or llama-3.")
]
CheckpointEvery = Annotated[
    float | None, typer.Option(min=1, max=MOST_S, help="With --failures: seconds of work between two. [3600]")
]
CheckpointStall = Annotated[
    float | None, typer.Option(min=0, max=MOST_S, help="With --failures: seconds that each stops a job for. [300]")
]
Restart = Annotated[
    float | None, typer.Option(min=0, max=MOST_S, help="Seconds until an interrupted job trains again. [300]")
]
Repair = Annotated[
    float | None, typer.Option(min=1, max=MOST_S, help="With --failures: seconds that a node is away. [86400]")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the estimates and the failures.")]
Plots = Annotated[Path | None, typer.Option(help="Draw charts of a trace into this folder, as SVG.")]
AsJson = Annotated[Path | None, typer.Option("--json", help="Write the result there; - for stdout.")]
