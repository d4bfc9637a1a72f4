"""Options of a submission and a plan for a job's place, and the parts of a specification that they set."""

from typing import Annotated, Any

import typer

from muster.cli.framework.options import unfit, value_of
from muster.domain.job.placement_options import labels_of, layout_of, slices_of

TotalGpus = Annotated[
    int | None, typer.Option(min=1, help="GPUs in all, on the fewest hosts that give as many each; no --nodes, --gpus.")
]
Within = Annotated[str | None, typer.Option(help="A level that must hold the whole gang, such as rack.")]
Near = Annotated[str | None, typer.Option(help="A level that holds the whole gang if it can, such as rack.")]
Slices = Annotated[
    list[str] | None,
    typer.Option("--slice", help="LEVEL=RANKS: so many ranks in one domain, such as rack=16; may be repeated."),
]
Balance = Annotated[str | None, typer.Option(help="A level over whose domains the gang is spread evenly.")]
Layout = Annotated[str | None, typer.Option(help="How ranks are divided: pp=2,dp=1,fsdp=4,tp=8, tp fastest.")]
TpAcross = Annotated[bool, typer.Option("--tp-across-nodes", help="Let tensor-parallel groups span hosts.")]
OnLabels = Annotated[
    list[str] | None, typer.Option("--on-label", help="NAME=VALUE[|VALUE] of its hosts; may be repeated.")
]
NotOnLabels = Annotated[
    list[str] | None, typer.Option("--not-on-label", help="NAME=VALUE[|VALUE] of no host of it; may be repeated.")
]


def place_of(
    within: str | None,
    near: str | None,
    slices: list[str] | None,
    balance: str | None,
    layout: str | None,
    on_labels: list[str] | None,
    not_on_labels: list[str] | None,
    *,
    tp_across_nodes: bool,
) -> dict[str, Any]:
    """Return the fields that were given: a server that knows none of them then still accepts the job."""
    with value_of("--slice"):
        topology = {"required": within, "preferred": near, "balance": balance, "slices": slices_of(slices or [])}
    with value_of("--on-label"):
        labels = {"required": labels_of(on_labels or [])}
    with value_of("--not-on-label"):
        labels["forbidden"] = labels_of(not_on_labels or [])
    if layout is None and tp_across_nodes:
        raise unfit("--tp-across-nodes", "it needs a --layout: give one too")
    said = {
        "topology": {name: value for name, value in topology.items() if value},
        "node_labels": {name: value for name, value in labels.items() if value},
        "layout": None if layout is None else _layout(layout, tp_across_nodes=tp_across_nodes),
    }
    return {name: value for name, value in said.items() if value}


def shape_of(nodes: int | None, gpus: int | None, total: int | None, **more: int | None) -> dict[str, Any]:
    """Return the shape's fields. ``more``: fields that are left out if they are None."""
    said = {name: value for name, value in more.items() if value is not None}
    if total is None:
        return {"nodes": nodes or 1, "gpus_per_node": gpus or 1, **said}
    given = [name for name, value in (("--nodes", nodes), ("--gpus", gpus)) if value is not None]
    given += [f"--{name.removesuffix('_per_node').replace('_', '-')}" for name in said]
    if given:
        raise unfit("--total-gpus", f"it is the sum over its hosts: leave out {', '.join(given)}")
    return {"gpus": total}


def _layout(words: str, *, tp_across_nodes: bool) -> dict[str, Any]:
    with value_of("--layout"):
        degrees = layout_of(words)
    return {**degrees, "allow_tp_across_nodes": True} if tp_across_nodes else degrees
