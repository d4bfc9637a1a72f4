"""``muster job copy`` and ``muster job retry`` submit a job's specification again, with a link to that job."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help
from muster.cli.framework.names import JobId, TenantOption
from muster.cli.framework.output import Answer, DryRun
from muster.cli.framework.profile import open_client
from muster.cli.job.files.source import SettingOptions, fields_given, program_again
from muster.cli.job.job_options import GivenTier, Name, Ranks
from muster.cli.job.job_submit import ResourceOptions, RuleOptions, submitted
from muster.cli.job.placement_options import PlaceOptions, SizeOptions
from muster.cli.job.program_options import ProgramOptions
from muster.client.transport import Problem

if TYPE_CHECKING:
    from muster import documents

Follow = Annotated[bool, typer.Option("--follow", help="Print its logs until it ends.")]
Wait = Annotated[bool, typer.Option("--wait", help="Show how far it is until it ends.")]
_RETRIED: Final = frozenset({"FAILED", "CANCELLED"})
_INSTEAD: Final = {
    "SUCCEEDED": "`muster job copy` submits an equal one.",
    "HELD": "`muster job release` lets it continue.",
}


def copy(
    job_id: JobId,
    size: SizeOptions,
    place: PlaceOptions,
    rules: RuleOptions,
    resources: ResourceOptions,
    around: ProgramOptions,
    settings: SettingOptions,
    program: Annotated[
        list[str] | None,
        typer.Argument(help=field_help("script", "After --: SCRIPT [ARGS…] in place of the job's own.")),
    ] = None,
    name: Name = None,
    ranks: Ranks = None,
    tier: GivenTier = None,
    tenant: TenantOption = None,
    *,
    follow: Follow = False,
    must_wait: Wait = False,
    dry_run: DryRun = False,
) -> Answer:
    """Submit a job equal to another one, with the fields that options change. It begins at its first step."""
    spec = _again(_job(job_id))
    typed, folder = program_again(around, program or [], spec)
    given = fields_given(
        name=name,
        tier=tier,
        program=typed,
        shape=size.given(ranks_per_node=ranks),
        **rules.fields(),
        **resources.fields(),
        **place.fields(),
    )
    changed = settings.applied(_overridden(spec, given))
    return _linked(
        changed,
        lambda spec: submitted(spec, tenant, folder=folder, follow=follow, must_wait=must_wait, dry_run=dry_run),
    )


def retry_one(job_id: str, *, follow: bool, must_wait: bool, dry_run: bool) -> Answer:
    """Submit a failed or cancelled job again, as it was, with its link. Raises CommandError: it is neither."""
    job = _job(job_id)
    if job["state"] not in _RETRIED:
        advice = _INSTEAD.get(job["state"], "It has not ended: `muster job cancel` ends it.")
        words = f"{job['id']} is {job['state']}: only a job that FAILED or was CANCELLED is tried again"
        raise CommandError(words, advice, Exit.CONFLICT)
    again = _again(job)
    return _linked(again, lambda spec: submitted(spec, None, follow=follow, must_wait=must_wait, dry_run=dry_run))


def _job(job_id: str) -> "documents.JobDetail":
    with open_client() as client:
        return client.job(job_id)


def _again(job: "documents.JobDetail") -> dict[str, Any]:
    """Return the submission of a job equal to ``job``, of its tenant."""
    return {**job["spec"], "tenant_id": job["tenant_id"], "copied_from": job["id"]}


def _linked(spec: dict[str, Any], send: Callable[[dict[str, Any]], Answer]) -> Answer:
    """Send the submission; to a server that does not know the link to the original, without it."""
    try:
        return send(spec)
    except Problem as problem:
        refused = [(each.get("pointer"), each.get("code")) for each in (problem.document or {}).get("errors", ())]
        if refused != [("/copied_from", "extra_forbidden")]:
            raise
    return send({name: value for name, value in spec.items() if name != "copied_from"})


def _overridden(spec: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    from muster.cli.job.files.overrides import overridden

    return overridden(spec, given)
