"""``muster reclaim``."""

from itertools import islice
from typing import Annotated, Final

import typer

from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.list_options import HolderOptions, Limit, WithinOptions
from muster.cli.framework.names import JobOption, ReclaimId
from muster.cli.framework.output import Listing, Page, age, moment_of, reads, until
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document

app = typer.Typer(help="Reclaims: GPUs taken back with notice, for which job and until when.", no_args_is_help=True)


def _due(item: Document) -> str:
    """Return the time left while the reclaim runs, else its deadline."""
    return until(item["deadline_at"]) if item["state"] == "NOTIFIED" else str(item["deadline_at"])[11:19]


COLUMNS: Final = (
    Column("RECLAIM", lambda item: item["id"]),
    Column("STATE", lambda item: item["state"]),
    Column("GPUS", lambda item: item["num_gpus"]),
    Column("FROM", lambda item: item["victim_tier"], wide=lambda item: _side(item, "victim")),
    Column("FOR", lambda item: item["beneficiary_tier"], wide=lambda item: _side(item, "beneficiary")),
    Column("DUE", _due, wide=lambda item: moment_of(item["deadline_at"])),
    Column("OUTCOME", lambda item: item["outcome"], only_wide=True),
    Column("REASON", lambda item: item["reason"], only_wide=True),
)


@reads(app, "list", example="muster reclaim list --state notified --watch")
def list_reclaims(
    within: WithinOptions,
    holder: HolderOptions,
    state: Annotated[list[str] | None, typer.Option(help=parameter_help("state", "NOTIFIED, RELEASED, …."))] = None,
    job: JobOption = None,
    limit: Limit = 20,
) -> Listing:
    """List reclaims, the newest first. --job, --tenant and --tier are of either side."""
    states = [name.upper() for name in state or []] or None
    with open_client() as client:
        side = holder.query(client)
        asked = client.reclaims(
            state=states,
            job_id=job,
            tenant_id=side["tenant_id"],
            tier=side["tier"],
            limit=min(limit, 200),
            **within.query(),
        )
        found = list(islice(asked, limit))
    return Listing(found, COLUMNS, "No GPUs have been reclaimed.")


@reads(app, "show", example="muster reclaim show rcl_…")
def show(reclaim_id: ReclaimId) -> Page:
    """Show one reclaim: reason, deadline, and the outcome of the work."""
    with open_client() as client:
        item = client.reclaim(reclaim_id)
    due = moment_of(item["deadline_at"])
    said = [
        f"{item['id']}  {item['state']}  {item['num_gpus']} GPUs",
        f"  {item['reason']}",
        f"  from {_side(item, 'victim')}, for {_side(item, 'beneficiary')}",
        *_choice(item),
        f"  notice of {item['notice_s']:g} s given {age(item['notified_at'])} ago, due {due}",
    ]
    if item["settled_at"] is not None:
        said.append(f"  {item['state'].lower()} {age(item['settled_at'])} ago: {item['settled_why']}")
    if item["outcome"] is not None:
        lost = "" if item["lost_gpu_s"] is None else f", {item['lost_gpu_s']:.0f} GPU-seconds lost"
        said.append(f"  {item['outcome'].replace('_', ' ')}{lost}")
    return Page(item, said)


def _choice(item: Document) -> list[str]:
    """Yield the reasons for the choice, as far as this key may see them. An older server sends fewer."""
    said = []
    if item.get("num_kept_gpus"):
        said.append(f"  elastic: it continues with {item['num_kept_gpus']} of its GPUs")
    if item.get("cost_gpu_s") is not None:
        said.append(f"  estimated to lose {item['cost_gpu_s']:,.0f} GPU-seconds")
    best = item.get("runner_up")
    if best is not None:
        said.append(f"  next best: {best['cost_gpu_s']:,.0f} GPU-seconds of {', '.join(best['victims'])}")
    return said


def _side(item: Document, side: str) -> str:
    """Return the job if this key may see it, else its tier."""
    return str(item[f"{side}_job_id"] or f"a {item[f'{side}_tier']} job")
