"""``muster cordon``."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from muster.cli.durations import seconds_of
from muster.cli.output import AsJson, age, print_json, print_table
from muster.cli.profile import open_client

app = typer.Typer(help="Cordons: keep a node or GPU out of new placements.", no_args_is_help=True)


@app.command("create")
def create(
    reason: Annotated[str, typer.Option(help="Why; whoever finds it asks.")],
    node: Annotated[str | None, typer.Option(help="node_…")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU-…")] = None,
    for_: Annotated[str | None, typer.Option("--for", help="Such as 2h; without it until released.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Nothing new is placed there; what runs, runs on."""
    wanted: dict[str, Any] = {"reason": reason, "node_id": node, "gpu_uuid": gpu}
    seconds = seconds_of(for_)
    if seconds is not None:
        wanted["until"] = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    with open_client(as_operator=True) as client:
        cordon = client.create_cordon(wanted)
    if as_json:
        print_json(cordon)
    else:
        typer.echo(f"{cordon['id']} stands on {cordon['node_id'] or cordon['gpu_uuid']}")


@app.command("list")
def list_cordons(*, as_json: AsJson = False) -> None:
    """Those that stand now."""
    with open_client(as_operator=True) as client:
        found = client.cordons()
    if as_json:
        print_json(found)
        return
    rows = [
        (item["id"], item["node_id"] or item["gpu_uuid"], item["reason"], item["owner"], age(item["created_at"]))
        for item in found
    ]
    print_table(("CORDON", "PLACE", "REASON", "OWNER", "AGE"), rows, empty="No cordons stand.")


@app.command("release")
def release(
    cordon_id: Annotated[str, typer.Argument(help="cdn_…")], reason: Annotated[str | None, typer.Option()] = None
) -> None:
    """End it now."""
    with open_client(as_operator=True) as client:
        cordon = client.release_cordon(cordon_id, reason)
    typer.echo(f"{cordon['id']} is released")
