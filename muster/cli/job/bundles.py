"""``muster bundle``."""

import re
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.list_options import Limit, WithinOptions
from muster.cli.framework.names import TenantOption, tenant_named
from muster.cli.framework.options import unfit
from muster.cli.framework.output import Done, DryRun, Listing, Page, age, changes, moment_of, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column
from muster.sizes import size_in_words

if TYPE_CHECKING:
    from muster.client.rest import RestClient

app = typer.Typer(help="Bundles: the work folders that jobs start in.", no_args_is_help=True)
BundleName = Annotated[str, typer.Argument(metavar="BUNDLE", help=parameter_help("bundle"))]
LEAST_DIGITS: Final = 6
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
COLUMNS: Final = (
    Column("BUNDLE", lambda bundle: bundle["digest"][:12]),
    Column("STATE", lambda bundle: bundle["state"]),
    Column("FILES", lambda bundle: f"{bundle['num_files']:,}"),
    Column("SIZE", lambda bundle: size_in_words(bundle["num_bytes"])),
    Column("USED", lambda bundle: age(bundle["active_at"])),
    Column("JOBS", lambda bundle: bundle["num_live_jobs"] or "–"),
    Column("BY", lambda bundle: bundle["created_by"], is_text=True, only_wide=True),
    Column("TENANT", lambda bundle: bundle["tenant_id"], only_wide=True),
    Column("DIGEST", lambda bundle: bundle["digest"], only_wide=True),
)


@reads(app, "list", example="muster bundle list --wide")
def list_bundles(
    within: WithinOptions,
    tenant: TenantOption = None,
    state: Annotated[str | None, typer.Option(help=parameter_help("state"))] = None,
    limit: Limit = 10_000,
    *,
    is_largest_first: Annotated[
        bool, typer.Option("--largest-first", help=parameter_help("order", "With it the largest first."))
    ] = False,
) -> Listing:
    """List bundles, the newest first, and how much the tenant stores."""
    order = within.query()
    if is_largest_first:
        if within.oldest_first:
            raise unfit("--largest-first", "leave out --oldest-first: a list has one order")
        order["order"] = "largest"
    with open_client() as client:
        owner = _owner(client, tenant)
        found = list(islice(client.bundles(tenant_id=owner, state=state, limit=200, **order), limit))
        notes = []
        if owner is not None or client.whoami()["tenant_id"] is not None:
            limits = client.content_limits(tenant_id=owner)
            notes.append(
                f"{size_in_words(limits['used_bytes'])} of {size_in_words(limits['tenant_bytes'])} are in use; what"
                " several bundles have counts once"
            )
    return Listing(found, COLUMNS, "No bundles. `muster job submit` uploads the folder of a job.", notes)


@reads(app, "show", example="muster bundle show 3f9a1c4b2d10")
def show(bundle: BundleName, tenant: TenantOption = None) -> Page:
    """Show one bundle: its size, its uploader, and the number of jobs that use it."""
    with open_client() as client:
        owner = _owner(client, tenant)
        found = client.bundle(_digest_of(client, bundle, owner), tenant_id=owner)
    completed = "not complete: the same submission again continues its upload"
    if found["completed_at"] is not None:
        completed = f"complete since {moment_of(found['completed_at'])}"
    jobs = found["num_live_jobs"]
    return Page(
        found,
        [
            f"{found['digest']}  {found['state']}",
            f"  {found['num_files']:,} files, {size_in_words(found['num_bytes'])}, {completed}",
            f"  begun {age(found['created_at'])} ago by {found['created_by']}, last used {age(found['active_at'])} ago",
            f"  {'no job uses it' if not jobs else f'{jobs} jobs that have not ended use it'}",
        ],
    )


@changes(app, "delete", example="muster bundle delete 3f9a1c4b2d10")
def remove(bundle: BundleName, tenant: TenantOption = None, *, dry_run: DryRun = False) -> Done:
    """Delete a bundle that no job uses which has not ended. It no longer counts; its space is free a day later."""
    with open_client() as client:
        owner = _owner(client, tenant)
        gone = client.delete_bundle(_digest_of(client, bundle, owner), tenant_id=owner, dry_run=dry_run)
    return Done(gone, f"{gone['digest'][:12]} is deleted")


def _owner(client: "RestClient", tenant: str | None) -> str | None:
    return None if tenant is None else tenant_named(client, tenant)


def _digest_of(client: "RestClient", name: str, owner: str | None) -> str:
    """Return the digest that a person names by its beginning. Raises CommandError: none or several have it."""
    if _DIGEST.fullmatch(name):
        return name
    advice = f"Give {LEAST_DIGITS} digits or more, as `muster bundle list` shows them."
    if len(name) < LEAST_DIGITS:
        raise CommandError(f"{name!r} is too short for a bundle's digest", advice, Exit.USAGE)
    digests = {each["digest"] for each in client.bundles(tenant_id=owner, limit=200) if each["digest"].startswith(name)}
    if len(digests) == 1:
        return digests.pop()
    words = f"{len(digests)} bundles have a digest that begins with {name!r}"
    raise CommandError(words, advice, Exit.NOT_FOUND if not digests else Exit.USAGE)
