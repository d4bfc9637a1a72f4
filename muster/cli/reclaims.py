"""``muster reclaim``."""

from typing import Annotated, Any

import typer

from muster.cli.output import AsJson, age, print_json, print_table
from muster.cli.profile import open_client

app = typer.Typer(help="Reclaims: GPUs taken back with notice, for whom and until when.", no_args_is_help=True)


@app.command("list")
def list_reclaims(
    state: Annotated[list[str] | None, typer.Option(help="NOTIFIED, RELEASED, …; may be repeated.")] = None,
    job: Annotated[str | None, typer.Option(help="job_…, as victim or as beneficiary.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 20,
    *,
    as_json: AsJson = False,
) -> None:
    """The newest first."""
    found = []
    with open_client() as client:
        states = [name.upper() for name in state or []] or None
        for item in client.reclaims(state=states, job_id=job, limit=min(limit, 200)):
            found.append(item)
            if len(found) == limit:
                break
    if as_json:
        print_json(found)
        return
    rows = [
        (item["id"], item["state"], item["num_gpus"], _side(item, "victim"), _side(item, "beneficiary"), _when(item))
        for item in found
    ]
    print_table(("RECLAIM", "STATE", "GPUS", "FROM", "FOR", "DEADLINE"), rows, empty="No GPUs have been reclaimed.")


@app.command("show")
def show(reclaim_id: Annotated[str, typer.Argument(help="rcl_…")], *, as_json: AsJson = False) -> None:
    """One reclaim: reason, deadline, and what became of the work."""
    with open_client() as client:
        item = client.reclaim(reclaim_id)
    if as_json:
        print_json(item)
        return
    typer.echo(f"{item['id']}  {item['state']}  {item['num_gpus']} GPUs")
    typer.echo(f"  {item['reason']}")
    typer.echo(f"  from {_side(item, 'victim')}, for {_side(item, 'beneficiary')}")
    typer.echo(f"  notice of {item['notice_s']:g} s given {age(item['notified_at'])} ago, due {_when(item)}")
    if item["settled_at"] is not None:
        typer.echo(f"  {item['state'].lower()} {age(item['settled_at'])} ago: {item['settled_why']}")
    if item["outcome"] is not None:
        lost = "" if item["lost_gpu_s"] is None else f", {item['lost_gpu_s']:.0f} GPU-seconds lost"
        typer.echo(f"  {item['outcome'].replace('_', ' ')}{lost}")


def _side(item: dict[str, Any], side: str) -> str:
    """The job where this key may know it, else its tier."""
    return str(item[f"{side}_job_id"] or f"a {item[f'{side}_tier']} job")


def _when(item: dict[str, Any]) -> str:
    return str(item["deadline_at"])[:19]
