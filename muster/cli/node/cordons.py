"""``muster cordon``."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import PlaceOptions, WithinOptions
from muster.cli.framework.names import CordonId, GpuOption, NodeOption, gpu_named, node_named, shortened
from muster.cli.framework.output import Done, DryRun, Listing, age, changes, reads, until
from muster.cli.framework.pending import once
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column
from muster.documents import NewCordon

if TYPE_CHECKING:
    from muster.client.rest import RestClient

app = typer.Typer(help="Cordons: keep a node or GPU out of new placements.", no_args_is_help=True)


@changes(app, "create", example="muster cordon create --node h100-1 --reason 'a fan is loud' --for 2h")
def create(
    reason: Annotated[str, typer.Option(help=field_help("NewCordon.reason"))],
    node: NodeOption = None,
    gpu: GpuOption = None,
    for_: Annotated[
        str | None, typer.Option("--for", help=field_help("until", "Such as 2h; without it until released."))
    ] = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Cordon a node or GPU: no new job is placed there, and running jobs continue."""
    if (node is None) == (gpu is None):
        raise CommandError("a cordon applies to one node or one GPU", "Give --node or --gpu.", Exit.INVALID)
    with open_client(as_operator=True) as client:
        body = _wanted(client, reason, node, gpu, for_)
        if dry_run:
            return Done(client.create_cordon(body, dry_run=True), "")
        asked = ["cordon", reason, body.get("node_id"), body.get("gpu_uuid"), for_]
        cordon = once(asked, body, lambda body, key: client.create_cordon(body, idempotency_key=key), what="the cordon")
    place_words = cordon["node_id"] or cordon["gpu_uuid"]
    return Done(cordon, f"{cordon['id']} applies to {place_words}; `muster cordon release` ends it")


def _wanted(client: "RestClient", reason: str, node: str | None, gpu: str | None, for_: str | None) -> NewCordon:
    wanted: NewCordon = {"reason": reason}
    if node is not None:
        wanted["node_id"] = node_named(client, node)
    if gpu is not None:
        wanted["gpu_uuid"] = gpu_named(client, gpu)
    seconds = seconds_of(for_, "--for")
    if seconds is not None:
        wanted["until"] = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    return wanted


@reads(app, "list", example="muster cordon list --wide")
def list_cordons(
    within: WithinOptions,
    where: PlaceOptions,
    node: NodeOption = None,
    owner: Annotated[str | None, typer.Option(help=parameter_help("owner"))] = None,
) -> Listing:
    """List the cordons that are in force or will be, the newest first. A GPU's is at the place of its node."""
    with open_client(as_operator=True) as client:
        found = client.cordons(node=node, rack=where.rack, label=where.label, owner=owner, **within.query())
        on_nodes = any(item["node_id"] for item in found)
        names = {node["id"]: node["name"] for node in client.nodes()} if on_nodes else {}
    short = shortened(sorted({item["gpu_uuid"] for item in found if item["gpu_uuid"]}), is_whole_fleet=False)
    columns = (
        Column("CORDON", lambda item: item["id"]),
        Column(
            "PLACE",
            lambda item: short.get(item["gpu_uuid"]) or names.get(item["node_id"], item["node_id"]),
            wide=lambda item: item["gpu_uuid"] or item["node_id"],
        ),
        Column("REASON", lambda item: item["reason"], is_text=True),
        Column("OWNER", lambda item: item["owner"], only_wide=True),
        Column("AGE", lambda item: age(item["created_at"])),
        Column("ENDS", lambda item: until(item["until"]) if item["until"] else "", only_wide=True),
    )
    return Listing(found, columns, "No cordons stand.")


@changes(app, "release", example="muster cordon release cdn_… --reason 'the fan is new'")
def release(
    cordon_id: CordonId,
    reason: Annotated[str | None, typer.Option(help=field_help("reason"))] = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """End a cordon now."""
    with open_client(as_operator=True) as client:
        cordon = client.release_cordon(cordon_id, reason, dry_run=dry_run)
    return Done(cordon, f"{cordon['id']} is released")
