"""``muster verdict``: what the watch states of running jobs."""

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, Final, Literal

import typer

from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import Limit, WithinOptions
from muster.cli.framework.names import JobId, JobOption, NodeOption, TenantOption, VerdictId, tenant_named
from muster.cli.framework.output import Done, DryRun, Listing, Page, Table, age, changes, moment_of, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column
from muster.domain.job.verdicts import REACTION_WORDS

app = typer.Typer(help="Verdicts: hangs, stragglers and wrong values of running jobs.", no_args_is_help=True)

State = Literal["standing", "dismissed", "all"]
COLUMNS: Final = (
    Column("VERDICT", lambda item: item["id"]),
    Column("KIND", lambda item: item["kind"]),
    Column("CAUSE", lambda item: item["cause"]),
    Column("RANKS", lambda item: ", ".join(map(str, item["ranks"]))),
    Column("STEP", lambda item: item["step"]),
    Column("AGE", lambda item: age(item["created_at"])),
    Column("JOB", lambda item: item["job_id"], only_wide=True),
    Column("NODE", lambda item: item["node_id"], only_wide=True),
    Column("SENTENCE", lambda item: item["sentence"], is_text=True, only_wide=True),
)
RULE_COLUMNS: Final = (
    Column("RULE", lambda item: item["rule"]),
    Column("CAUSE", lambda item: item["cause"]),
    Column("VERDICTS", lambda item: item["num_verdicts"]),
    Column("FALSE ALARMS", lambda item: item["num_dismissed"]),
)


@reads(app, "list", example="muster verdict list --watch")
def list_verdicts(
    within: WithinOptions,
    state: Annotated[State, typer.Option(help=parameter_help("state", "standing, dismissed or all."))] = "standing",
    kind: Annotated[
        list[str] | None, typer.Option(help=parameter_help("kind", "Such as hang; may be repeated."))
    ] = None,
    job: JobOption = None,
    node: NodeOption = None,
    tenant: TenantOption = None,
    limit: Limit = 20,
) -> Listing:
    """List verdicts, the newest first."""
    wanted = None if state == "all" else state
    with open_client() as client:
        node_id = None if node is None else client.node(node)["id"]
        tenant_id = None if tenant is None else tenant_named(client, tenant)
        asked = client.verdicts(
            state=wanted, kind=kind, job=job, node=node_id, tenant_id=tenant_id, limit=min(limit, 200), **within.query()
        )
        found = list(islice(asked, limit))
    return Listing(found, COLUMNS, "No verdict stands." if state == "standing" else "There are no such verdicts.")


@reads(app, "show", example="muster verdict show vrd_…")
def show(verdict_id: VerdictId) -> Page:
    """Show a verdict with the evidence on which it rests."""
    with open_client() as client:
        item = client.verdict(verdict_id)
    return Page(item, lines_of(item))


@reads(app, "rules", example="muster verdict rules")
def rules(job: JobOption = None) -> Page:
    """Show how often each rule gave a verdict and was wrong, and which rules only notify of a job since then."""
    with open_client() as client:
        found = client.verdict_rules(job=job)
    if not found["counts"]:
        return Page(found, ["There is no verdict yet."])
    learnt = [f"{item['job_id']}: {item['proposal']}." for item in found["learnt"]]
    since = [f"Counted since {moment_of(found['since'])}."] if found.get("since") else []
    return Page(found, [Table(RULE_COLUMNS, found["counts"]), *learnt, *since])


@changes(app, "dismiss", example="muster verdict dismiss vrd_… --reason 'an evaluation that takes an hour'")
def dismiss(
    verdict_id: VerdictId,
    reason: Annotated[str, typer.Option(help=field_help("VerdictDismissal.reason"))],
    *,
    dry_run: DryRun = False,
) -> Done:
    """Dismiss a verdict that was a false alarm: it blames no host and no GPU any more."""
    with open_client(as_operator=True) as client:
        item = client.dismiss_verdict(verdict_id, reason, dry_run=dry_run)
    return Done(item, f"{item['id']} is dismissed")


@changes(app, "reset", example="muster verdict reset llama-8b --reason 'the storage was repaired'")
def reset(
    job: JobId,
    reason: Annotated[str, typer.Option(help=field_help("VerdictRulesReset.reason"))],
    *,
    dry_run: DryRun = False,
) -> Done:
    """Let earlier dismissals mute no rule of a job: its verdicts lead to their reactions again."""
    with open_client(as_operator=True) as client:
        item = client.reset_verdict_rules(job, reason, dry_run=dry_run)
    return Done(item, f"no rule is muted for {job} any more")


def lines_of(item: Mapping[str, Any]) -> list[str]:
    """Return a verdict as lines of text: its sentence first."""
    said = [
        item["sentence"],
        f"  {item['id']}  {item['kind']}: {item['cause']}, at step {item['step']}, {age(item['created_at'])} ago",
        f"  job {item['job_id']}, attempt {item['attempt_id']}; {REACTION_WORDS[item['reaction']]}",
    ]
    if item["frame"] is not None:
        frame = item["frame"]
        said.append(f"  {frame['file']}:{frame['line']} in {frame['function']}")
    said += [f"  {line}" for line in item["evidence"]]
    if item.get("ended_at") is not None:
        said.append(f"  not slow any more since {age(item['ended_at'])} ago; slow up to step {item['last_step']}")
    if item.get("burn_in_id") is not None:
        said.append(f"  burn-in {item['burn_in_id']} of its GPU")
    if item.get("burn_in_note") is not None:
        said.append(f"  burn-in of its GPU: {item['burn_in_note']}")
    if item["dismissed_at"] is not None:
        said.append(f"  dismissed by {item['dismissed_by']} {age(item['dismissed_at'])} ago: {item['dismiss_reason']}")
    return said
