"""``muster job submit``."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help
from muster.cli.framework.job_names import note_submitted
from muster.cli.framework.names import TenantOption, tenant_named
from muster.cli.framework.options import unfit
from muster.cli.framework.output import Answer, Done, DryRun
from muster.cli.framework.pending import once
from muster.cli.framework.profile import open_client
from muster.cli.framework.sizes import bytes_of
from muster.cli.job.files.source import SourceOptions, fields_given, program_again
from muster.cli.job.job_logs import follow as follow_logs
from muster.cli.job.job_options import (
    Budget,
    Cpus,
    Datasets,
    DiskReads,
    DiskWrites,
    GivenTier,
    Grace,
    JobClass,
    MaxRestarts,
    Memory,
    Name,
    OnHang,
    OnStraggler,
    OnValueFault,
    OomDoublings,
    Outputs,
    Pids,
    Ranks,
    RerunExitCodes,
    Secrets,
    WallTime,
)
from muster.cli.job.job_plan import plan_shown
from muster.cli.job.job_wait import wait_for_end
from muster.cli.job.placement_options import PlaceOptions, SizeOptions
from muster.cli.job.program_options import ProgramOptions, name_of
from muster.cli.job.work_folder import Bundled, WorkFolder, needs_upload
from muster.client.transport import Problem

if TYPE_CHECKING:
    from muster import documents
    from muster.cli.job.files.job_file import JobFile
    from muster.client.rest import RestClient


@dataclass(frozen=True)
class RuleOptions:
    """How long a job may run, what follows from its faults, and what it may expect."""

    max_restarts: MaxRestarts = None
    oom_doublings: OomDoublings = 0
    wall_time: WallTime = None
    budget_gpu_hours: Budget = None
    grace: Grace = None
    on_hang: OnHang = None
    on_straggler: OnStraggler = None
    on_value_fault: OnValueFault = None
    rerun_exit_codes: RerunExitCodes = None
    job_class: JobClass = None

    def fields(self) -> dict[str, Any]:
        return {
            "restart": restart_of(self.max_restarts, self.oom_doublings),
            "wall_time_s": seconds_of(self.wall_time, "--wall-time"),
            "stop_grace_s": seconds_of(self.grace, "--grace"),
            **_given(
                on_hang=self.on_hang,
                on_straggler=self.on_straggler,
                on_value_fault=self.on_value_fault,
                rerun_exit_codes=self.rerun_exit_codes,
                budget_gpu_hours=self.budget_gpu_hours,
                job_class=self.job_class,
            ),
        }


@dataclass(frozen=True)
class LimitOptions:
    """What a program may use of each host, at most."""

    memory: Memory = None
    pids: Pids = None
    cpus: Cpus = None
    disk_reads: DiskReads = None
    disk_writes: DiskWrites = None

    def limits(self) -> dict[str, Any]:
        """Return the limits that were given."""
        said = {
            "memory_bytes": bytes_of(self.memory, "--memory"),
            "pids": self.pids,
            "cpus": self.cpus,
            "io_read_bytes_per_s": bytes_of(self.disk_reads, "--disk-reads"),
            "io_write_bytes_per_s": bytes_of(self.disk_writes, "--disk-writes"),
        }
        return {name: limit for name, limit in said.items() if limit is not None}


@dataclass(frozen=True)
class ResourceOptions(LimitOptions):
    """What a job may use on its hosts."""

    secret: Secrets = None
    dataset: Datasets = None
    outputs: Outputs = None

    def fields(self) -> dict[str, Any]:
        secrets = [secret_of(words) for words in self.secret or []]
        return _given(
            limits=self.limits(),
            secrets=[name for variable, name in secrets if not variable],
            secret_env={variable: name for variable, name in secrets if variable},
            datasets=[dataset_of(words) for words in self.dataset or []],
            outputs=list(self.outputs or []),
        )


def secret_of(words: str) -> tuple[str, str]:
    """Return variable and name of ``NAME`` or ``VARIABLE=NAME``; a file's variable is empty."""
    variable, is_variable, name = words.partition("=")
    if is_variable and not (variable and name):
        raise unfit("--secret", f"{words!r} is neither NAME nor VARIABLE=NAME")
    return (variable, name) if is_variable else ("", words)


def submit(
    size: SizeOptions,
    place: PlaceOptions,
    rules: RuleOptions,
    resources: ResourceOptions,
    around: ProgramOptions,
    source: SourceOptions,
    program: Annotated[
        list[str] | None,
        typer.Argument(help=field_help("script", "SCRIPT [ARGS…], or with --command the whole command.")),
    ] = None,
    name: Name = None,
    ranks: Ranks = None,
    tier: GivenTier = None,
    tenant: TenantOption = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Print its logs until it ends.")] = False,
    must_wait: Annotated[bool, typer.Option("--wait", help="Show how far it is until it ends.")] = False,
    dry_run: DryRun = False,
) -> Answer:
    """Submit a job, by options or from a file. With --follow or --wait the exit code is the job's: 0, 20 failed,
    21 cancelled.

    Interrupted before it was answered, the same command again is the same job. A dry run is `muster job plan`.
    """
    words = program or []
    source.require_one(words)
    fields = {**rules.fields(), **resources.fields(), **place.fields()}
    if source.file is not None:
        given = {"name": name, "tier": tier, "shape": size.given(ranks_per_node=ranks), **fields}
        file, folder = _from_file(source, around, words, given)
        with file.naming_lines():
            return submitted(file.document, tenant, folder=folder, follow=follow, must_wait=must_wait, dry_run=dry_run)
    spec = {
        "name": name or name_of(words[0]),
        "program": around.fields(words),
        "shape": size.shape(ranks_per_node=ranks),
        "tier": tier or "on_demand",
        **fields,
    }
    folder = around.folder(words)
    return submitted(source.applied(spec), tenant, folder=folder, follow=follow, must_wait=must_wait, dry_run=dry_run)


def _from_file(
    source: SourceOptions, around: ProgramOptions, words: list[str], options: dict[str, Any]
) -> "tuple[JobFile, WorkFolder | None]":
    """Return the file's job with what options give, checked, and its work folder."""
    file = source.read()
    typed, folder = program_again(around, words, file.document)
    file = file.with_options(fields_given(**options, program=typed), source.chosen())
    file.require_submission()
    return file, folder if words else around.folder_of_file(file)


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields with a value: a server that knows none of them then still accepts the job."""
    return {name: value for name, value in fields.items() if value}


def submitted(
    spec: dict[str, Any],
    tenant: str | None,
    *,
    folder: WorkFolder | None = None,
    follow: bool,
    must_wait: bool,
    dry_run: bool,
) -> Answer:
    """Submit the specification, or show its plan, and then do what was asked. ``folder``: it is uploaded first."""
    with open_client() as client:
        if tenant is not None:
            spec["tenant_id"] = tenant_named(client, tenant)
        bundled = None if folder is None else Bundled.of(client, folder, spec)
        _require_bundle_of_lock(spec)
        if dry_run:
            lines = [] if bundled is None else [bundled.would_upload(), *bundled.environment]
            return plan_shown(client.plan_job(spec), lines)
        for line in () if bundled is None else bundled.environment:
            typer.echo(line, err=True)
        job = _sent(client, spec, bundled)
    job_id = str(job["id"])
    note_submitted(job_id)
    of_which = f", a copy of {spec['copied_from']}" if spec.get("copied_from") else ""
    then = partial(follow_logs, job_id) if follow else partial(wait_for_end, job_id) if must_wait else None
    return Done(job, f"{job_id}  {job['name']}  {job['state']}{of_which}", then=then)


def _require_bundle_of_lock(spec: dict[str, Any]) -> None:
    """Require that a program with an environment has a bundle. Raises CommandError."""
    program = spec.get("program") or {}
    if program.get("environment") and program.get("bundle") is None and program.get("git") is None:
        words = "an environment is built from a lock file of the work folder, and this job has none"
        raise CommandError(words, "Name the folder by --bundle; its control plane needs a content store.", Exit.USAGE)


def _sent(client: "RestClient", spec: dict[str, Any], bundled: Bundled | None) -> "documents.ChangedJob":
    def send() -> "documents.ChangedJob":
        return once(["job", spec], spec, lambda body, key: client.submit_job(body, idempotency_key=key), what="the job")

    if bundled is None:
        return send()
    bundled.upload_if_missing()
    try:
        return send()
    except Problem as problem:
        if not needs_upload(problem.document):
            raise
    # It was deleted just now, by a person or as unused for long.
    bundled.upload()
    return send()


def restart_of(max_restarts: int | None, oom_doublings: int) -> dict[str, int]:
    said = {} if max_restarts is None else {"max_restarts": max_restarts}
    return {**said, **_given(gpu_oom_doublings=oom_doublings)}


def dataset_of(words: str) -> dict[str, Any]:
    """Return a dataset's fields. A path with a comma can be named through the API alone."""
    name, separator, rest = words.partition("=")
    path, *more = rest.split(",")
    said = dict(field.partition("=")[::2] for field in more)
    if not separator or not path.startswith("/") or said.keys() - {"manifest", "verify"} or not all(said.values()):
        raise unfit("--dataset", f"{words!r} is not NAME=/PATH[,manifest=/PATH][,verify=sizes|checksums]")
    return {"name": name, "path": path, **said}
