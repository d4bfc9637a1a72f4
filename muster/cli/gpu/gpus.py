"""``muster gpu``."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import HolderOptions, PlaceOptions
from muster.cli.framework.names import GpuName, JobOption, NodeOption, gpu_named, node_named, shortened
from muster.cli.framework.output import Done, DryRun, Listing, Page, changes, reads
from muster.cli.framework.pending import once
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document
from muster.cli.gpu import rollups
from muster.cli.gpu.gpu_history import register
from muster.cli.gpu.gpu_texts import gpu_lines, standing_words, started_words

if TYPE_CHECKING:
    from muster.client.gpus import GpuConditions
    from muster.client.rest import RestClient

app = typer.Typer(help="GPUs: what is known of each, and what to do about it.", no_args_is_help=True)

Reason = Annotated[str, typer.Option(help=field_help("reason"))]
Step = Literal["start", "finish", "fail"]
Action = Literal["reset", "driver_reload", "reboot", "power_cycle", "field_diagnosis", "swap", "other"]

By = Literal["person", "agent"]


@reads(app, "list", example="muster gpu list --standing suspect --standing quarantined --watch")
def list_gpus(
    where: PlaceOptions,
    holder: HolderOptions,
    standing: Annotated[list[str] | None, typer.Option(help=parameter_help("standing", "HEALTHY, SUSPECT, …."))] = None,
    node: NodeOption = None,
    model: Annotated[str | None, typer.Option(help=parameter_help("model"))] = None,
    below: Annotated[float | None, typer.Option(help=parameter_help("below"), min=0, max=101)] = None,
    job: JobOption = None,
    order: Annotated[str | None, typer.Option(help=parameter_help("list_gpus.order"))] = None,
    *,
    is_cordoned: Annotated[
        bool | None,
        typer.Option("--cordoned/--not-cordoned", help=parameter_help("list_gpus.cordoned")),
    ] = None,
) -> Listing:
    """List GPUs with their effective standing and score: a person's standing counts over its own.

    By node and slot; --order score gives the lowest score first, --order moved the newest move of a standing.
    """
    standings = [name.upper() for name in standing or []] or None
    with open_client(as_operator=True) as client:
        node_id = None if node is None else node_named(client, node)
        conditions: GpuConditions = {
            "standing": standings,
            "node": node_id,
            "model": model,
            "below": below,
            "uuid": None,
            "cordoned": is_cordoned,
            "rack": where.rack,
            "label": where.label,
            "job_id": job,
            **holder.query(client),
        }
        found = client.gpus(order=order, **conditions)
    is_whole_fleet = all(value is None for value in conditions.values())
    short = shortened([gpu["uuid"] for gpu in found], is_whole_fleet=is_whole_fleet)
    columns = (
        Column("GPU", lambda gpu: short[gpu["uuid"]], wide=lambda gpu: gpu["uuid"]),
        Column("SLOT", lambda gpu: gpu["slot_index"]),
        Column("MODEL", lambda gpu: gpu["model"].removeprefix("NVIDIA "), wide=lambda gpu: gpu["model"]),
        Column("STANDING", standing_words, is_text=True),
        Column("SCORE", score_words),
        Column("NODE", lambda gpu: gpu["node_id"], only_wide=True),
        Column("SERIAL", lambda gpu: gpu["serial"], only_wide=True),
        Column("DRIVER", lambda gpu: gpu["driver_version"], only_wide=True),
        Column("COHORT", lambda gpu: gpu["cohort_key"], only_wide=True),
    )
    return Listing(found, columns, "No GPUs are enrolled." if is_whole_fleet else "No GPU is like that.")


@reads(app, "show", example="muster gpu show GPU-51300000")
def show(gpu: GpuName) -> Page:
    """Show one GPU: score, evidence, what would return it to service, cordons, and its job."""
    with open_client(as_operator=True) as client:
        found = client.gpu(gpu_named(client, gpu))
    return Page(found, list(gpu_lines(found)))


@changes(app, "dismiss", example="muster gpu dismiss GPU-… ev_… --reason 'the cable was loose'")
def dismiss(
    gpu: GpuName,
    evidence: Annotated[str, typer.Argument(help=parameter_help("evidence_id"))],
    reason: Reason,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Remove evidence from the judgement; a quarantine that depended on it alone ends."""
    return _do(gpu, lambda client, uuid: client.dismiss_evidence(uuid, evidence, reason, dry_run=dry_run))


@changes(app, "repair", example="muster gpu repair GPU-… start --by agent --reason 'as the driver asks'")
def repair(
    gpu: GpuName,
    step: Annotated[Step, typer.Argument(help="start, finish or fail.")],
    reason: Reason,
    action: Annotated[Action | None, typer.Option(help=field_help("NewRepair.action"))] = None,
    fault_group: Annotated[str | None, typer.Option("--for", help=field_help("NewRepair.fault_group"))] = None,
    by: Annotated[By, typer.Option(help=field_help("NewRepair.by"))] = "person",
    *,
    dry_run: DryRun = False,
) -> Done:
    """Report that a repair begins, is done, or failed. A burn-in follows a repair that is done.

    `muster gpu show` says which remedy is due.
    """
    if step != "start" and by == "agent":
        advice = "An agent reports the end of its repair itself; leave --by out to end it yourself."
        raise CommandError(f"--by agent goes with start, not with {step}", advice, Exit.INVALID)

    def report(client: "RestClient", uuid: str) -> Document:
        if step == "start":
            return client.start_repair(uuid, reason, action=action, fault_group=fault_group, by=by, dry_run=dry_run)
        end = client.finish_repair if step == "finish" else client.fail_repair
        return end(uuid, reason, dry_run=dry_run)

    done = _do(gpu, report)
    return done if step != "start" else Done(done.found, f"{done.words}: {started_words(done.found, action)}")


@changes(app, "retire", example="muster gpu retire GPU-… --reason 'sent back'")
def retire(gpu: GpuName, reason: Reason, *, dry_run: DryRun = False) -> Done:
    """Take it out of service; its jobs are evacuated."""
    return _do(gpu, lambda client, uuid: client.retire_gpu(uuid, reason, dry_run=dry_run))


@changes(app, "reinstate", example="muster gpu reinstate GPU-… --reason 'came back'")
def reinstate(gpu: GpuName, reason: Reason, *, dry_run: DryRun = False) -> Done:
    """Bring a retired GPU back: UNPROVEN, its burn-in follows."""
    return _do(gpu, lambda client, uuid: client.reinstate_gpu(uuid, reason, dry_run=dry_run))


@changes(app, "quarantine", example="muster gpu quarantine GPU-… --reason 'it smells' --for 4h")
def quarantine(
    gpu: GpuName,
    reason: Reason,
    for_: Annotated[
        str, typer.Option("--for", help=field_help("until", "Such as 4h or 7d, or until it is released."))
    ] = "7d",
    *,
    dry_run: DryRun = False,
) -> Done:
    """Quarantine it by your decision, whatever its evidence; its jobs are moved away. `release` ends it."""
    return _override(gpu, "QUARANTINED", reason, for_, dry_run=dry_run)


@changes(app, "override", example="muster gpu override GPU-… healthy --reason 'needed tonight' --for 12h")
def override(
    gpu: GpuName,
    standing: Annotated[str, typer.Argument(help=field_help("NewOverride.standing"))],
    reason: Reason,
    for_: Annotated[str, typer.Option("--for", help=field_help("until", "Such as 4h or 7d."))],
    *,
    dry_run: DryRun = False,
) -> Done:
    """Set a standing over its own for a limited time; evidence is still judged, and none of it is hidden."""
    return _override(gpu, standing.upper(), reason, for_, dry_run=dry_run)


@changes(app, "release", example="muster gpu release GPU-… --reason 'nothing was found'")
def release(gpu: GpuName, reason: Reason, *, dry_run: DryRun = False) -> Done:
    """End a person's quarantine or override: its own standing counts again."""
    return _do(gpu, lambda client, uuid: client.release_override(uuid, reason, dry_run=dry_run))


def _override(gpu: str, standing: str, reason: str, for_: str, *, dry_run: bool) -> Done:
    seconds = seconds_of(for_, "--for") or 0.0
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()

    def send(client: "RestClient", uuid: str) -> Document:
        if dry_run:
            return client.override_gpu(uuid, standing, until, reason, dry_run=True)
        return once(
            ["override", uuid, standing, reason, for_],
            {"until": until},
            lambda body, key: client.override_gpu(uuid, standing, body["until"], reason, idempotency_key=key),
            what="the override",
        )

    return _do(gpu, send)


def score_words(gpu: Document) -> str:
    return "" if gpu["score"] is None else f"{gpu['score']:.0f}"


def _do(gpu: str, work: "Callable[[RestClient, str], Document]") -> Done:
    with open_client(as_operator=True) as client:
        found = work(client, gpu_named(client, gpu))
    return Done(found, f"{found['uuid']} is {standing_words(found)}")


register(app)
rollups.register(app)
