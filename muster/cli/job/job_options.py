"""Options of a submission for a job's size, time and limits, some of which a plan has too."""

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str | None, typer.Option(help="Default: the script's name.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="How many hosts. Default: 1.")]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs a node. Default: 1.")]
MinNodes = Annotated[
    int | None, typer.Option(min=1, help="Elastic: it starts, and continues, with so few hosts. Default: as --nodes.")
]
MaxNodes = Annotated[
    int | None, typer.Option(min=1, help="Elastic: it grows to so many where GPUs are idle. Default: as --nodes.")
]
Ranks = Annotated[int | None, typer.Option(min=1, help="Ranks a node; default: one a GPU.")]
Tier = Annotated[str, typer.Option(help="As the policy names it: reserved, on_demand, spot.")]
MaxRestarts = Annotated[
    int | None,
    typer.Option(min=0, help="New attempts that its own faults may cost, in a row without progress. Default: 3."),
]
WallTime = Annotated[str | None, typer.Option(help="Such as 10m or 2h.")]
Grace = Annotated[str | None, typer.Option(help="Between SIGTERM and SIGKILL, such as 30s.")]
Memory = Annotated[str | None, typer.Option(help="Of each host, at most: such as 64GiB.")]
Pids = Annotated[int | None, typer.Option(min=1, help="Processes and threads on each host, at most.")]
GivenTier = Annotated[
    str | None, typer.Option("--tier", help="As the policy names it: reserved, on_demand, spot. Default: on_demand.")
]
OomDoublings = Annotated[
    int,
    typer.Option(min=0, max=10, help="How often to double the accumulation after a lack of GPU memory, at most."),
]
OnHang = Annotated[
    str | None,
    typer.Option(help="If no rank makes progress: restart, hold or notify (continue). Default: as the policy says."),
]
OnStraggler = Annotated[
    str | None,
    typer.Option(
        help="If the others wait for a slow rank: notify, or swap (continue without its host after a checkpoint, where "
        "that pays). Default: as the policy says."
    ),
]
OnValueFault = Annotated[
    str | None,
    typer.Option(
        help="If a value is not finite: stop, rollback[:GENERATIONS[:BUDGET]], skip[:GENERATIONS[:BUDGET]]. "
        "Default: as the program says."
    ),
]
RerunExitCodes = Annotated[
    str | None,
    typer.Option(
        help="What the program means by exit codes 16 and 17. megatron: as Megatron-LM's rerun state machine; own: "
        "something of its own. Default: run again on another GPU, and diverged."
    ),
]
Cpus = Annotated[float | None, typer.Option(min=0.01, help="Of each host, at most: such as 16 or 2.5.")]
DiskReads = Annotated[str | None, typer.Option(help="From each disk of a host, a second, at most: such as 500MiB.")]
DiskWrites = Annotated[str | None, typer.Option(help="To each disk of a host, a second, at most: such as 500MiB.")]
Budget = Annotated[
    float | None, typer.Option(min=0.001, help="GPU hours that all its attempts together may hold; then it is stopped.")
]
Datasets = Annotated[
    list[str] | None,
    typer.Option(help="NAME=PATH[,manifest=PATH][,verify=checksums], on every host; may be repeated."),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--outputs", help="PATTERN of files in the working folder to keep, such as 'models/**'. May be repeated."
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(help="NAME of a secret, a file for the program; or VARIABLE=NAME. May be repeated."),
]
Env = Annotated[list[str] | None, typer.Option(help="KEY=VALUE; may be repeated.")]
Python = Annotated[Path | None, typer.Option(help="The interpreter with torch.")]
Workdir = Annotated[Path | None, typer.Option(help="Default: this folder; in a container, one of the attempt's own.")]
