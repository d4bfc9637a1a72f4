"""Options of a submission and a plan for a job's size and place, and the parts of a specification that they set."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from muster.cli.framework.field_help import field_help
from muster.cli.framework.options import unfit, value_of
from muster.cli.job.job_options import Gpus, MaxNodes, MinNodes, Nodes
from muster.domain.job.placement_options import labels_of, layout_of, slices_of

TotalGpus = Annotated[int | None, typer.Option(min=1, help=field_help("Shape.gpus"))]
Within = Annotated[str | None, typer.Option(help=field_help("TopologyRule.required"))]
Near = Annotated[str | None, typer.Option(help=field_help("TopologyRule.preferred"))]
Slices = Annotated[
    list[str] | None,
    typer.Option("--slice", help=field_help("TopologyRule.slices", "LEVEL=RANKS, may be repeated.")),
]
Balance = Annotated[str | None, typer.Option(help=field_help("TopologyRule.balance"))]
Layout = Annotated[str | None, typer.Option(help=field_help("layout", "pp=2,dp=1,fsdp=4,tp=8, tp fastest."))]
TpAcross = Annotated[bool, typer.Option("--tp-across-nodes", help=field_help("ParallelLayout.allow_tp_across_nodes"))]
OnLabels = Annotated[
    list[str] | None,
    typer.Option("--on-label", help=field_help("NodeLabelRule.required", "NAME=VALUE[|VALUE], may be repeated.")),
]
NotOnLabels = Annotated[
    list[str] | None,
    typer.Option("--not-on-label", help=field_help("NodeLabelRule.forbidden", "NAME=VALUE[|VALUE], may be repeated.")),
]


@dataclass(frozen=True)
class PlaceOptions:
    """Where a job may be placed."""

    within: Within = None
    near: Near = None
    slices: Slices = None
    balance: Balance = None
    layout: Layout = None
    tp_across_nodes: TpAcross = False
    on_labels: OnLabels = None
    not_on_labels: NotOnLabels = None

    def fields(self) -> dict[str, Any]:
        """Return the fields that were given: a server that knows none of them then still accepts the job."""
        with value_of("--slice"):
            slices = slices_of(self.slices or [])
        topology = {"required": self.within, "preferred": self.near, "balance": self.balance, "slices": slices}
        with value_of("--on-label"):
            labels = {"required": labels_of(self.on_labels or [])}
        with value_of("--not-on-label"):
            labels["forbidden"] = labels_of(self.not_on_labels or [])
        said = {
            "topology": {name: value for name, value in topology.items() if value},
            "node_labels": {name: value for name, value in labels.items() if value},
            "layout": self._layout(),
        }
        return {name: value for name, value in said.items() if value}

    def _layout(self) -> dict[str, Any] | None:
        if self.layout is None:
            if self.tp_across_nodes:
                raise unfit("--tp-across-nodes", "it needs a --layout: give one too")
            return None
        with value_of("--layout"):
            degrees = layout_of(self.layout)
        return {**degrees, "allow_tp_across_nodes": True} if self.tp_across_nodes else degrees


@dataclass(frozen=True)
class SizeOptions:
    """How many hosts and GPUs a job has."""

    nodes: Nodes = None
    gpus: Gpus = None
    total_gpus: TotalGpus = None
    min_nodes: MinNodes = None
    max_nodes: MaxNodes = None

    def shape(self, *, ranks_per_node: int | None = None) -> dict[str, Any]:
        """Return the shape's fields, of one GPU unless more are given."""
        given = self.given(ranks_per_node=ranks_per_node)
        return given if "gpus" in given else {"nodes": 1, "gpus_per_node": 1, **given}

    def given(self, *, ranks_per_node: int | None = None) -> dict[str, Any]:
        """Return the shape's fields that options give."""
        more = {"ranks_per_node": ranks_per_node, "min_nodes": self.min_nodes, "max_nodes": self.max_nodes}
        said = {name: value for name, value in more.items() if value is not None}
        own = {"nodes": self.nodes, "gpus_per_node": self.gpus}
        if self.total_gpus is None:
            return {**{name: value for name, value in own.items() if value is not None}, **said}
        given = [name for name, value in (("--nodes", self.nodes), ("--gpus", self.gpus)) if value is not None]
        given += [f"--{name.removesuffix('_per_node').replace('_', '-')}" for name in said]
        if given:
            raise unfit("--total-gpus", f"it is the sum over its hosts: leave out {', '.join(given)}")
        return {"gpus": self.total_gpus}
