"""``muster job``."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Final, Literal

import typer

from muster.cli.framework.bulk import JobSelection
from muster.cli.framework.durations import seconds_of
from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import Limit, OldestFirst, WithinOptions
from muster.cli.framework.names import JobId
from muster.cli.framework.output import Done, DryRun, Listing, Page, Table, age, changes, moment_of, reads, until
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document, printable
from muster.cli.job.costs.comparison import add_comparison
from muster.cli.job.costs.job_cost import add_cost
from muster.cli.job.files.copies import copy
from muster.cli.job.files.export import export, schema
from muster.cli.job.job_changes import add_changes
from muster.cli.job.job_files import files, get
from muster.cli.job.job_logs import logs
from muster.cli.job.job_options import Reason
from muster.cli.job.job_pins import pin, unpin
from muster.cli.job.job_plan import explain, plan, reasons
from muster.cli.job.job_submit import submit
from muster.cli.job.job_training import figure_of, ranks, steps
from muster.cli.job.job_wait import wait_for_end
from muster.domain.job.checkpoint_interval import interval_in_words
from muster.domain.job.dropped import dropped_in_words
from muster.domain.job.energy import energy_in_words

app = typer.Typer(help="Jobs: submit, watch, cancel.", no_args_is_help=True)


def _status_of(item: Document) -> str:
    """Return the status with the pin, if it is pinned; ``pin requested``: its program has yet to mark it."""
    status = str(item["status"])
    if status == "EXPIRED" or not (item.get("pinned_at") or item.get("pin_applied_at")):
        return status
    return f"{status}, {'pinned' if item.get('pin_applied_at') else 'pin requested'}"


def _made_of(item: Document, name: str) -> str | None:
    """Return the beginning of a hash of a checkpoint's lineage, if the server sends one."""
    value = (item.get("lineage") or {}).get(name)
    return None if value is None else str(value)[:12]


def _num_gpus(job: Document) -> int:
    """Return the requested number of GPUs; an older server does not send a later request."""
    shape = job["spec"]["shape"]
    return int((job.get("wanted_nodes") or shape["nodes"]) * shape["gpus_per_node"])


def _size(job: Document) -> str:
    """Return a size such as ``4 × 8 GPUs``, with the range of an elastic job."""
    shape = job["spec"]["shape"]
    nodes = job.get("wanted_nodes") or shape["nodes"]
    fewest, most = shape.get("min_nodes") or shape["nodes"], job.get("wanted_nodes") or shape.get("max_nodes") or nodes
    range_of = "" if fewest == most else f" ({fewest} to {most} hosts)"
    return f"{nodes} × {shape['gpus_per_node']} GPUs{range_of}"


COLUMNS: Final = (
    Column("JOB", lambda job: job["id"]),
    Column("NAME", lambda job: job["name"], is_text=True),
    Column("TIER", lambda job: job["tier"]),
    Column("STATE", lambda job: job["state"]),
    Column("AGE", lambda job: age(job["created_at"])),
    Column("GPUS", _num_gpus, only_wide=True),
    Column("CLASS", lambda job: job.get("job_class"), only_wide=True),
    Column("TENANT", lambda job: job["tenant_id"], only_wide=True),
    Column("BINDS", lambda job: job.get("binding"), only_wide=True),
    Column("WHY", lambda job: job["state_reason"], only_wide=True),
)
CHECKPOINTS: Final = (
    Column("STEP", lambda item: item["step"]),
    Column("STATUS", _status_of),
    Column("GENERATION", lambda item: item["generation"]),
    Column("AGE", lambda item: "–" if item["committed_at"] is None else age(item["committed_at"])),
    Column("WHY", lambda item: item["reason"], is_text=True),
    Column("CODE", lambda item: _made_of(item, "git_commit") or _made_of(item, "code_sha256"), only_wide=True),
    Column("BUNDLE", lambda item: _made_of(item, "bundle"), only_wide=True),
    Column("CONFIG", lambda item: _made_of(item, "config_sha256"), only_wide=True),
    Column("DATA", lambda item: _made_of(item, "data_sha256"), only_wide=True),
    Column("PARENT", lambda item: (item.get("lineage") or {}).get("parent"), only_wide=True),
    Column("MIB", lambda item: f"{(item['bytes'] or 0) / (1 << 20):.1f}", only_wide=True),
)


ENERGY: Final = (
    Column("ATTEMPT", lambda item: item["number"]),
    Column("KWH", lambda item: figure_of(item["energy_kwh"])),
    Column("JOULES", lambda item: "" if item["energy_j"] is None else f"{item['energy_j']:,.0f}"),
    Column("GPUS", lambda item: f"{item['gpus_metered']}/{item['gpus']}"),
    Column("GPU S", lambda item: f"{item['gpu_seconds']:,.0f}/{item['assigned_gpu_seconds']:,.0f}"),
    Column("J/STEP", lambda item: figure_of(item.get("j_per_step"))),
    Column("TOKENS/J", lambda item: figure_of(item["tokens_per_j"])),
)
EVENTS: Final = (
    Column("POSITION", lambda item: item["position"]),
    Column("AT", lambda item: item["at"][11:19], wide=lambda item: moment_of(item["at"])),
    Column("KIND", lambda item: item["kind"]),
    Column("WHY", lambda item: item["payload"].get("reason") or item["payload"].get("cause"), is_text=True),
)

_OF_PROGRAM: Final = {"allow_interspersed_args": False}
"""All words behind the script are the program's."""
changes(
    app,
    "submit",
    example="muster job submit --follow --gpus 2 -- train.py --steps 100",
    context_settings=_OF_PROGRAM,
)(submit)
changes(app, "copy", example="muster job copy job_… --nodes 4 --set labels.run=second")(copy)
app.command("export", epilog="Example: `muster job export job_… > job.yaml`")(export)
app.command("schema", epilog="Example: `muster job schema > job.schema.json`")(schema)
reads(app, "plan", example="muster job plan --nodes 4 --gpus 8 --wall-time 2h", context_settings=_OF_PROGRAM)(plan)
reads(app, "explain", example="muster job explain job_…")(explain)
reads(app, "ranks", example="muster job ranks job_… --watch")(ranks)
reads(app, "steps", example="muster job steps job_… --json")(steps)
changes(app, "pin", example="muster job pin job_… 400 --reason 'the one that we published'")(pin)
changes(app, "unpin", example="muster job unpin job_… 400")(unpin)
reads(app, "files", example="muster job files job_…")(files)
changes(app, "get", example="muster job get job_… model.pt -o results")(get)
app.command("logs", epilog="Example: `muster job logs job_… --follow --rank 0`")(logs)


@reads(app, "list", example="muster job list --state queued --state active --watch")
def list_jobs(
    where: JobSelection,
    *,
    limit: Limit = 20,
    oldest_first: OldestFirst = False,
) -> Listing:
    """List jobs, the newest first."""
    order: Literal["oldest"] | None = "oldest" if oldest_first else None
    with open_client() as client:
        jobs = client.jobs(**where.selector(client), limit=min(limit, 200), order=order)
        found = list(islice(jobs, limit))
    empty = "No job is like that." if where.is_given else "No jobs yet. `muster job submit -- SCRIPT` makes one."
    return Listing(found, COLUMNS, empty)


@reads(app, "show", example="muster job show job_… --watch")
def show(job_id: JobId) -> Page:
    """Show one job with the timeline of its attempts."""
    with open_client() as client:
        job = client.job(job_id)
    return Page(job, list(_lines(job)))


def _idle(attempt: Document) -> str:
    words = f"its GPUs have done nothing for {age(attempt['idle_since'])}"
    stop_at = attempt["idle_stop_at"]
    return words if stop_at is None else f"{words}: it is stopped {until(stop_at)}, unless they work"


def _lines(job: Document) -> Iterator[str]:
    yield f"{job['id']}  {job['name']}  {job['state']}"
    yield f"  {printable(job['state_reason'])}"
    yield from reasons(job)
    yield from _requested(job)
    for attempt in job["attempts"]:
        cause = f"  {attempt['cause']}: {printable(attempt['proof'] or '')}" if attempt["cause"] else ""
        yield f"  attempt {attempt['number']}  {attempt['state']}{_hosts(job, attempt)}{cause}"
        if attempt["stop_reason"] and attempt["state"] != "ENDED":
            yield f"    asked to stop: {attempt['stop_reason']}, at the latest {until(attempt['stop_deadline_at'])}"
        if attempt.get("idle_since"):  # an older server does not say
            yield f"    {_idle(attempt)}"
        if interval := attempt.get("checkpoint_interval"):
            yield from (f"    {words}" for words in interval_in_words(interval).split("; "))
        if energy := attempt.get("energy"):
            yield f"    {energy_in_words(energy)}"
        if dropped := dropped_in_words(attempt.get("dropped", {})):  # an older server does not say
            yield f"    left out: {dropped}"
        if attempt.get("go_at"):  # an older server does not say
            yield f"    all hosts were ready {age(attempt['go_at'])} ago, and started together"
        for host in attempt["hosts"]:
            yield f"    {host['node_name']}: {host['state']}, {len(host['gpus'])} GPUs{_readiness(host)}"
            if attempt is job["attempts"][-1]:
                yield from (f"      {gpu}" for gpu in host["gpus"])


def _requested(job: Document) -> Iterator[str]:
    """Yield the job's own facts, whatever its attempts do."""
    yield f"  tier {job['tier']}, {_size(job)}, submitted {age(job['created_at'])} ago by {job['submitted_by']}"
    if job_class := job.get("job_class"):  # an older server does not say
        yield f"  class {job_class}"
    if original := job.get("copied_from"):  # an older server does not say
        yield f"  a copy of {original}"
    for dataset in job["spec"].get("datasets", ()):
        yield f"  dataset {dataset['name']}: {dataset['path']}"
    if job.get("accumulation", 1) > 1:  # an older server does not say
        yield f"  takes each batch in {job['accumulation']} times as many pieces: GPU memory was short"
    if job["next_try_at"]:
        yield f"  tried again {until(job['next_try_at'])}"


def _readiness(host: Document) -> str:
    """Return the readiness of a host that starts together with others; an older server does not send it."""
    if host.get("is_at_fault"):
        return "; at fault, so that the job avoids it"
    if host["state"] != "CLAIMED" or not host.get("awaits_go"):
        return ""
    return f"; ready for {age(host['ready_at'])}" if host["ready_at"] else "; not ready yet"


def _hosts(job: Document, attempt: Document) -> str:
    """Return an elastic job's number of hosts in this attempt."""
    fewest, most = (job["spec"]["shape"].get(name) for name in ("min_nodes", "max_nodes"))
    num_hosts = len(attempt["hosts"])
    return "" if fewest is None and most is None else f"  {num_hosts} host{'' if num_hosts == 1 else 's'}"


@reads(app, "checkpoints", example="muster job checkpoints job_…")
def checkpoints(
    job_id: JobId,
    within: WithinOptions,
    status: Annotated[list[str] | None, typer.Option(help=parameter_help("status", "VERIFIED, GOOD, …."))] = None,
    *,
    is_pinned: Annotated[bool | None, typer.Option("--pinned/--not-pinned", help=parameter_help("pinned"))] = None,
) -> Listing:
    """List generations with their status, the newest step first, and why one is never resumed from."""
    statuses = [each.upper() for each in status or []] or None
    with open_client() as client:
        found = client.checkpoints(job_id, status=statuses, pinned=is_pinned, **within.query())
    return Listing(found, CHECKPOINTS, "No checkpoint was committed.")


@reads(app, "energy", example="muster job energy job_…")
def energy(job_id: JobId) -> Page:
    """Show the energy that the job's attempts used, by the counters of their GPUs."""
    with open_client() as client:
        found = client.job_energy(job_id)
    total = "not known" if found["energy_j"] is None else f"{found['energy_kwh']:.4g} kWh ({found['energy_j']:,.0f} J)"
    simulated = ", of simulated GPUs" if found["is_simulated"] else ""
    reasons = [f"Attempt {each['number']}: {each['why']}." for each in found["attempts"] if each["why"]]
    return Page(found, [f"{job_id}  {total}{simulated}", Table(ENERGY, found["attempts"]), *reasons])


@reads(app, "events", example="muster job events job_…")
def events(job_id: JobId) -> Listing:
    """List the job's events, in order."""
    with open_client() as client:
        return Listing(list(client.job_events(job_id)), EVENTS, "Nothing has happened to it yet.")


add_changes(app)
add_cost(app)
add_comparison(app)


@changes(app, "resize", example="muster job resize job_… --nodes 2 --reason 'the rest is for the others'")
def resize(
    job_id: JobId,
    nodes: Annotated[int, typer.Option(min=1, help=field_help("Resizing.nodes"))],
    reason: Reason = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Continue an elastic job with another number of hosts, from its own checkpoint, without a charge."""
    with open_client() as client:
        job = client.resize_job(job_id, nodes, reason, dry_run=dry_run)
    return Done(job, f"{job['id']}  {job['state']}: {nodes} hosts at most from now on")


@app.command("wait", epilog="Example: `muster job wait job_… --timeout 2h && echo trained`")
def wait(job_id: JobId, timeout: Annotated[str, typer.Option(help="Such as 10m.")] = "1d") -> int:
    """Wait until a job has ended; exit code 0 succeeded, 20 failed, 21 cancelled."""
    return wait_for_end(job_id, seconds_of(timeout, "--timeout") or 0.0)
