"""``muster tenant residency``, and the lines about a residency rule."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from muster.cli.framework.field_help import field_help
from muster.cli.framework.names import TenantName, tenant_named
from muster.cli.framework.options import unfit
from muster.cli.framework.output import DryRun, Page, changes, effect_lines
from muster.cli.framework.profile import open_client

app = typer.Typer(help="Residency: the sites of a tenant's jobs and the stores of its data.", no_args_is_help=True)


@changes(app, "set", example="muster tenant residency set acme --site ams --store main --reason 'their contract'")
def set_residency(
    tenant: TenantName,
    reason: Annotated[str, typer.Option(help=field_help("reason"))],
    site: Annotated[
        list[str] | None,
        typer.Option(help=field_help("NewResidency.sites", "May be repeated.")),
    ] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(help=field_help("NewResidency.stores", "May be repeated.")),
    ] = None,
    *,
    dry_run: DryRun = False,
) -> Page:
    """Keep jobs and data of a tenant, with all below it, at sites and in stores. It replaces the rule that it had.

    Nothing that runs is stopped, and nothing is moved: the answer names what is outside, and what to do about it.
    """
    if not site and not store:
        raise unfit("--site", "name a --site or a --store; `muster tenant residency lift` ends a rule")
    with open_client(as_operator=True) as client:
        tenant_id = tenant_named(client, tenant)
        found = client.set_tenant_residency(
            tenant_id, reason, sites=site or None, stores=store or None, dry_run=dry_run
        )
    return _page(found)


@changes(app, "lift", example="muster tenant residency lift acme --reason 'the contract ended'")
def lift(
    tenant: TenantName,
    reason: Annotated[str, typer.Option(help=field_help("reason"))],
    *,
    dry_run: DryRun = False,
) -> Page:
    """End the residency rule of a tenant. Rules of departments above it still hold."""
    with open_client(as_operator=True) as client:
        found = client.set_tenant_residency(tenant_named(client, tenant), reason, dry_run=dry_run)
    return _page(found)


def _page(found: Mapping[str, Any]) -> Page:
    """Return the answer of a change; of a dry run with its effect instead of the rule."""
    if found.get("dry_run"):
        return Page(found, [*effect_lines(found), *_host_lines(found), *outside_lines(found)])
    return Page(found, list(lines_of(found)))


def lines_of(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rule that holds for a tenant, how many hosts it leaves, and what is outside of it."""
    yield f"{found['name']}: {words_of(found['holds'])}"
    yield from _host_lines(found)
    yield from outside_lines(found)


def _host_lines(found: Mapping[str, Any]) -> Iterator[str]:
    if found["holds"]["sites"] is None:
        return
    yield f"{found['num_hosts']} of {found['num_fleet_hosts']} hosts are at its sites"
    if not found["num_hosts"]:
        yield "no job of it can start: label hosts with `muster node label HOST site=NAME`"


def outside_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is outside of the rule, and what to do about it."""
    for one in found["outside"]:
        yield f"outside: {_WHAT[one['kind']].format(name=one['name'])} {', '.join(one['places'])}"
        yield f"  {one['to_do']}"


def words_of(rule: Mapping[str, Any] | None) -> str:
    """Return a rule as text."""
    if rule is None or (rule["sites"] is None and rule["stores"] is None):
        return "no residency rule"
    told = []
    if rule["sites"] is not None:
        told.append(f"jobs at {' or '.join(rule['sites']) or 'no site'} only")
    if rule["stores"] is not None:
        told.append(f"data in {' or '.join(rule['stores']) or 'no store'} only")
    return ", ".join(told)


_WHAT = {
    "running_job": "job {name} runs on",
    "checkpoints": "job {name} writes checkpoints to",
    "content": "content of {name},",
    "copies": "copies of content of {name} on",
}
