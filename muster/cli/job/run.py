"""``muster run`` supervises a program on this machine, without a control plane."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.exits import CommandError, Exit, close_quietly
from muster.cli.framework.field_help import field_help
from muster.cli.framework.option_groups import grouped
from muster.cli.framework.output import AsJson, json_of, print_line
from muster.cli.job.environments import Engine, Image, Mounts, User, Venv, environment_of
from muster.cli.job.job_options import (
    OnHang,
    OnValueFault,
    OomDoublings,
    RerunExitCodes,
)
from muster.cli.job.job_submit import LimitOptions, restart_of
from muster.cli.job.program_options import name_of, program_of
from muster.cli.job.run_host import gpus_here, kernel_faults_of, readings_of
from muster.domain.errors import ValidationFailedError

if TYPE_CHECKING:
    from muster.domain.job.spec import JobSpec
    from workers.local.local_run import Ask
    from workers.local.plan import RunPlan

FOLDER: Final = Path("muster-runs")
_EXIT_CODE_OF_STATE: Final = {"SUCCEEDED": Exit.OK, "FAILED": Exit.JOB_FAILED, "CANCELLED": Exit.INTERRUPTED}


@dataclass(frozen=True)
class RunRuleOptions:
    """How long a program may run here, and what follows from its faults."""

    max_restarts: Annotated[int, typer.Option(min=0, max=100, help=field_help("max_restarts"))] = 3
    pause: Annotated[str | None, typer.Option(help="Before a new attempt; it doubles, up to twice that. 30s.")] = None
    oom_doublings: OomDoublings = 0
    on_hang: OnHang = None
    on_value_fault: OnValueFault = None
    rerun_exit_codes: RerunExitCodes = None
    wall_time: Annotated[str | None, typer.Option(help=field_help("wall_time_s", "All attempts together."))] = None
    grace: Annotated[str | None, typer.Option(help=field_help("stop_grace_s"))] = None

    def fields(self) -> dict[str, Any]:
        return {
            "restart": restart_of(self.max_restarts, self.oom_doublings),
            "wall_time_s": seconds_of(self.wall_time, "--wall-time"),
            "stop_grace_s": seconds_of(self.grace, "--grace"),
            "on_hang": self.on_hang,
            "on_value_fault": self.on_value_fault,
            "rerun_exit_codes": self.rerun_exit_codes,
        }


@dataclass(frozen=True)
class RunProgramOptions:
    """How a program is started here. ``command``: as it is, without torchrun."""

    env: Annotated[
        list[str] | None,
        typer.Option(help=field_help("env", "KEY=VALUE, may be repeated. It sees little else of this shell's.")),
    ] = None
    python: Annotated[Path | None, typer.Option(help=field_help("python", "It has torch. Default: this one."))] = None
    venv: Venv = None
    image: Image = None
    engine: Engine = None
    mounts: Mounts = None
    user: User = None
    workdir: Annotated[
        Path | None, typer.Option(help=field_help("working_dir", "Default: this folder, from which SCRIPT is found."))
    ] = None
    command: Annotated[bool, typer.Option("--command", help=field_help("launcher"))] = False

    def fields(self, words: list[str]) -> dict[str, Any]:
        around = environment_of(self.venv, self.image, self.engine, self.mounts, self.user)
        return program_of(words, self.env or [], self.python, self.workdir, around, is_command=self.command)


@grouped
def run(
    program: Annotated[
        list[str], typer.Argument(help=field_help("script", "SCRIPT [ARGS…], or with --command the whole command."))
    ],
    rules: RunRuleOptions,
    limits: LimitOptions,
    around: RunProgramOptions,
    name: Annotated[str | None, typer.Option(help=field_help("name", "Default: the script's name."))] = None,
    folder: Annotated[
        Path | None, typer.Option(help="For checkpoints, logs, records. Default: muster-runs/NAME here.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, max=576, help=field_help("ranks_per_node", "Default: one a GPU, or one without GPUs.")),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="So many of this machine's. Default: all it has.")] = None,
    dcgm_exporter: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A dcgm-exporter, for the activity of tensor cores: http://127.0.0.1:9400/metrics."
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> int:
    """Run a program on this machine, supervised, without a control plane.

    It is restarted with the cause shown, and resumes from its checkpoint. The same command again continues where the
    last one stopped. Ctrl-C lets it save and leave, a second one kills it.
    Exit codes: 0, 20 failed, 130 interrupted.
    """
    exporter = None if dcgm_exporter is None else _exporter_at(dcgm_exporter)
    uuids = gpus_here(gpus)
    spec = checked_spec(
        {
            "name": name or name_of(program[0]),
            "program": around.fields(program),
            "shape": {"ranks_per_node": ranks or max(1, len(uuids))},
            **rules.fields(),
            "limits": limits.limits(),
        }
    )
    plan = replace(plan_of(spec, uuids, seconds_of(rules.pause, "--pause")), spare_gpus=gpus_here(None)[len(uuids) :])
    return supervise(plan, folder or FOLDER / spec.name, exporter, as_json=as_json)


def _exporter_at(url: str) -> str:
    from muster.cli.host.agent import http_address  # with the agent's logging, which few runs need

    return http_address("--dcgm-exporter", url)


def supervise(plan: "RunPlan", folder: Path, exporter: str | None = None, *, as_json: bool) -> int:
    """Run it to its end, with its progress shown. Returns the exit code. ``exporter``: a dcgm-exporter's address.

    Raises:
        CommandError: a path or tool that it names does not exist.
        ConflictError: another run works in the folder, or the folder holds another program's.
    """
    from workers.local.local_run import Ask, LocalRun
    from workers.local.plan import RunFolder

    spec = plan.spec
    require_startable(spec)
    ask = Ask()
    show = _nowhere if as_json else _Shown(with_prefix=spec.shape.num_ranks_per_node > 1)
    try:
        place = RunFolder(folder.absolute(), spec)
        try:
            with signals_handled(ask):
                ended = LocalRun(
                    plan, place, print_note, show, ask, readings_of(plan.gpus, exporter), kernel_faults_of(plan.gpus)
                ).run()
        finally:
            place.close()
    except OSError as fault:
        raise CommandError(f"{folder}: {fault.strerror or fault}", "Choose another --folder, or free space.") from fault
    if as_json:
        print_line(json_of(ended, indent=2))
    print_note(f"{ended['state']}: {ended['state_reason']} ({_so_many(ended)}, {ended['seconds']:.0f} s)")
    saved = [each["saved_step"] for each in ended["attempts"] if each["saved_step"] is not None]
    if saved and ended["state"] != "SUCCEEDED":
        print_note(f"the same command continues after step {max(saved)}")
    return _EXIT_CODE_OF_STATE[ended["state"]]


def checked_spec(document: dict[str, Any]) -> "JobSpec":
    """Return the specification as the control plane would take it. Raises CommandError naming the fields."""
    from muster.domain.job.spec import JobSpec
    from muster.domain.validation import validated

    try:
        return validated(JobSpec, document)
    except ValidationFailedError as fault:
        said = "; ".join(f"{_option_of(each.pointer)}: {each.detail}" for each in fault.faults)
        raise CommandError(said, "`muster run --help` says what each takes.", Exit.INVALID) from None


def _option_of(pointer: str) -> str:
    """Return the option that sets the field; for a field within others, its place."""
    field = pointer.removeprefix("/")
    return field.replace("/", ".") if "/" in field else f"--{field.replace('_', '-')}"


def require_startable(spec: "JobSpec") -> None:
    """Raise CommandError if a path or tool does not exist: that is a typing error, and no attempt's fault."""
    program = spec.program
    if program.container is not None:
        return  # its paths are the image's; the attempt reports what the host lacks
    if program.venv is not None and shutil.which(f"{program.venv}/bin/python") is None:
        raise CommandError(f"--venv {program.venv} has no bin/python that may be run", "", Exit.NOT_FOUND)
    folder = Path(program.working_dir or Path.cwd())
    if not folder.is_dir():
        raise CommandError(f"--workdir {folder} is no folder", "", Exit.NOT_FOUND)
    if program.script is not None and not Path(program.script).is_file():
        raise CommandError(f"the script {program.script} does not exist", "", Exit.NOT_FOUND)
    search = os.pathsep.join([*([f"{program.venv}/bin"] if program.venv else []), os.environ.get("PATH", os.defpath)])
    for tool in (*program.argv[:1], *([program.python] if program.python else [])):
        if shutil.which(folder / tool if "/" in tool else tool, path=search) is None:
            raise CommandError(f"{tool} is not there, or may not be run", "", Exit.NOT_FOUND)


def plan_of(
    spec: "JobSpec", gpus: tuple[str, ...], pause_s: float | None, variables: Mapping[str, str] | None = None
) -> "RunPlan":
    """Return the run's plan with the built-in policy's numbers, since there is no other policy here."""
    from muster.domain.lifecycle.model import Timers
    from muster.domain.policy.document import Policy
    from workers.local.plan import RunPlan

    policy = Policy()
    timers = Timers.of(policy)
    if pause_s is not None:
        timers = replace(timers, retry_backoff_ms=round(pause_s * 1000), retry_backoff_max_ms=round(pause_s * 2000))
    training = policy.training
    return RunPlan(
        spec,
        gpus,
        sys.executable,
        timers,
        policy.limits.log_bytes_per_stream,
        good_after_steps=training.good_after_steps,
        hold_s=training.fault_detection_s,
        interval=training.checkpoint_interval,
        scrub=training.scrub,
        last_save_retry_s=training.last_save_retry_s,
        variables=variables or {},
        watch=policy.watch,
    )


@contextmanager
def signals_handled(ask: "Ask") -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: ask.note()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_note(words: str) -> None:
    """Print to the error stream; a run continues if nothing reads it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        typer.echo(f"muster: {words}", err=True)


class _Shown:
    """Output of the ranks, until the reader ends or accepts no more: the run continues without it."""

    def __init__(self, *, with_prefix: bool) -> None:
        self._with_prefix = with_prefix
        self._is_received = True

    def __call__(self, stream: str, line: str) -> None:
        if not self._is_received:
            return
        try:
            print_line(f"[{stream}] {line}" if self._with_prefix else line)
        except (OSError, ValueError, AttributeError) as fault:
            self._is_received = False
            if isinstance(fault, OSError):
                close_quietly()  # buffered output would fail again at the end, and set the exit code
            print_note(f"the output has no reader any more ({fault}); it is in the logs")


def _nowhere(_stream: str, _line: str) -> None:
    """Drop a line: with --json the logs stay in their files."""


def _so_many(ended: dict[str, Any]) -> str:
    num = len(ended["attempts"])
    return f"{num} attempt" if num == 1 else f"{num} attempts"
