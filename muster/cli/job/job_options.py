"""Options of a submission for a job's size, time and limits, some of which a plan has too."""

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.framework.field_help import field_help

Name = Annotated[str | None, typer.Option(help=field_help("name", "Default: the script's name."))]
Nodes = Annotated[int | None, typer.Option(min=1, help=field_help("Shape.nodes", "Default: 1."))]
Gpus = Annotated[int | None, typer.Option(min=1, help=field_help("gpus_per_node", "Default: 1."))]
MinNodes = Annotated[int | None, typer.Option(min=1, help=field_help("Shape.min_nodes"))]
MaxNodes = Annotated[int | None, typer.Option(min=1, help=field_help("Shape.max_nodes"))]
Ranks = Annotated[int | None, typer.Option(min=1, help=field_help("ranks_per_node"))]
Tier = Annotated[str, typer.Option(help=field_help("tier"))]
JobClass = Annotated[str | None, typer.Option(help=field_help("job_class"))]
MaxRestarts = Annotated[
    int | None,
    typer.Option(min=0, help=field_help("max_restarts", "Default: 3.")),
]
WallTime = Annotated[str | None, typer.Option(help=field_help("wall_time_s"))]
Grace = Annotated[str | None, typer.Option(help=field_help("stop_grace_s"))]
Memory = Annotated[str | None, typer.Option(help=field_help("HostLimits.memory_bytes", "Such as 64GiB."))]
Pids = Annotated[int | None, typer.Option(min=1, help=field_help("HostLimits.pids"))]
GivenTier = Annotated[str | None, typer.Option("--tier", help=field_help("tier", "Default: on_demand."))]
OomDoublings = Annotated[
    int,
    typer.Option(min=0, max=10, help=field_help("Restart.gpu_oom_doublings")),
]
OnHang = Annotated[
    str | None,
    typer.Option(help=field_help("on_hang", "restart, hold or notify (continue).")),
]
OnStraggler = Annotated[
    str | None,
    typer.Option(
        help=field_help(
            "on_straggler", "notify, or swap (continue without its host after a checkpoint, where that pays)."
        )
    ),
]
OnValueFault = Annotated[
    str | None,
    typer.Option(
        help=field_help("on_value_fault", "stop, rollback[:GENERATIONS[:BUDGET]], skip[:GENERATIONS[:BUDGET]].")
    ),
]
RerunExitCodes = Annotated[
    str | None,
    typer.Option(
        help=field_help(
            "rerun_exit_codes", "megatron: as Megatron-LM's rerun state machine; own: something of its own."
        )
    ),
]
Cpus = Annotated[float | None, typer.Option(min=0.01, help=field_help("HostLimits.cpus", "Such as 16."))]
DiskReads = Annotated[str | None, typer.Option(help=field_help("HostLimits.io_read_bytes_per_s", "Such as 500MiB."))]
DiskWrites = Annotated[str | None, typer.Option(help=field_help("HostLimits.io_write_bytes_per_s", "Such as 500MiB."))]
Budget = Annotated[float | None, typer.Option(min=0.001, help=field_help("budget_gpu_hours"))]
Datasets = Annotated[
    list[str] | None,
    typer.Option(help=field_help("datasets", "NAME=PATH[,manifest=PATH][,verify=checksums], may be repeated.")),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option("--outputs", help=field_help("JobSpec.outputs", "Such as 'models/**', may be repeated.")),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(help=field_help("secrets", "Or VARIABLE=NAME. May be repeated.")),
]
Env = Annotated[list[str] | None, typer.Option(help=field_help("env", "KEY=VALUE, may be repeated."))]
Reason = Annotated[str | None, typer.Option(help=field_help("reason"))]
Python = Annotated[Path | None, typer.Option(help=field_help("python", "It has torch."))]
Workdir = Annotated[
    Path | None,
    typer.Option(help=field_help("working_dir", "Default: this folder; in a container, one of the attempt's own.")),
]
