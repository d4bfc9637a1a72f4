"""``muster train`` helps a tenant with the training itself."""

from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.field_help import field_help
from muster.cli.framework.names import JobId
from muster.cli.framework.output import AsJson
from muster.cli.framework.profile import open_client
from muster.cli.job import train_check
from muster.cli.job.program_options import pair_of
from muster.cli.job.run import FOLDER, checked_spec, plan_of, supervise
from muster.cli.job.run_host import gpus_here

app = typer.Typer(help="Trainings: look into one that fails, check that one resumes exactly.", no_args_is_help=True)
LOUD: Final = {"NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO", "PYTHONFAULTHANDLER": "1"}
"""Variables for the program, unless its own environment sets them. Not DETAIL: with it, wrapping a model in DDP over
gloo ends by SIGSEGV in torch 2.13.0.
"""
_SYNCHRONOUS: Final = {"MUSTER_TRAIN_SYNCHRONOUS": "1"}


@app.callback()
def root() -> None:
    """Help with trainings."""


@app.command("debug", epilog="Example: `muster train debug job_…`, on a machine that sees the job's files")
def debug(
    job_id: JobId,
    ranks: Annotated[int, typer.Option(min=1, max=16, help="On this machine.")] = 2,
    wall_time: Annotated[str, typer.Option(help="Then it is stopped.")] = "10m",
    env: Annotated[list[str] | None, typer.Option(help=field_help("env", "KEY=VALUE, may be repeated."))] = None,
    *,
    as_json: AsJson = False,
) -> int:
    """Run a job's program again, small and here: one node, two ranks, one attempt, each checkpoint awaited, NCCL loud.

    It begins at the start, in a folder of its own: the job and its checkpoints are left as they are.
    """
    with open_client() as client:
        job = client.job(job_id)
    gpus = gpus_here(None)[:ranks]
    spec = checked_spec(_small(job["spec"], ranks, seconds_of(wall_time, "--wall-time"), dict(map(pair_of, env or []))))
    if names := [*job["spec"].get("secrets", []), *job["spec"].get("secret_env", {}).values()]:
        typer.echo(f"Not given here, as only the fleet's hosts have them: secrets {', '.join(names)}.", err=True)
    pieces = job.get("accumulation", 1)  # an older server does not say
    variables = {**_SYNCHRONOUS, **({"MUSTER_ACCUMULATION": str(pieces)} if pieces > 1 else {})}
    return supervise(plan_of(spec, gpus, None, variables), _fresh_folder(job_id), as_json=as_json)


app.command("check", epilog="Example: `muster train check -- train.py`, on a machine with torch")(train_check.check)


def _fresh_folder(job_id: str) -> Path:
    """Return a new folder for each run, so that it begins at the start."""
    return next(folder for number in count(1) if not (folder := FOLDER / f"debug-{job_id}" / str(number)).exists())


def _small(spec: dict[str, Any], ranks: int, wall_time_s: float | None, env: dict[str, str]) -> dict[str, Any]:
    """Return the job's program unchanged, without its place and its checkpoints."""
    program = {name: value for name, value in spec["program"].items() if value not in (None, [], {})}
    return {
        "name": spec["name"],
        "program": {**program, "env": {**LOUD, **program.get("env", {}), **env}},
        "shape": {"ranks_per_node": ranks},
        "limits": spec.get("limits", {}),
        "restart": {"max_restarts": 0},
        "wall_time_s": wall_time_s,
        "stop_grace_s": spec.get("stop_grace_s"),
    }
