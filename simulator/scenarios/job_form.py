"""The jobs of a scenario, running and pending, as a job's specification states them, with a rank a GPU."""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, model_validator

from muster.domain.job.placement_spec import NodeLabelRule, ParallelLayout, SliceRule, TopologyRule
from muster.domain.job.spec import Shape
from muster.domain.strict import Name, Printable, StrictModel

MOST_S: Final = 31_536_000
Length = Annotated[float, Field(gt=0, le=MOST_S)]
Delay = Annotated[float, Field(ge=0, le=MOST_S)]
Past = Annotated[float, Field(ge=-MOST_S, le=0)]
Count = Annotated[int, Field(ge=1, le=100_000)]
DEFAULT_TENANT: Final = "tenant"


class JobFields(StrictModel):
    """The fields of a job.

    ``duration_s``: how long it runs; without one it does not end by itself. ``leaves_in_s``: the time after a notice
    until it has saved and released its GPUs; without it, it leaves at the deadline. Its demands on its place are as in
    a job's specification, with a rank a GPU.
    """

    name: Printable
    tenant: Printable = DEFAULT_TENANT
    tier: Printable = "on_demand"
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] = 8
    min_nodes: Count | None = None
    max_nodes: Count | None = None
    required: Name | None = None
    preferred: Name | None = None
    slices: tuple[SliceRule, ...] = Field(default=(), max_length=8, strict=False)
    balance: Name | None = None
    layout: ParallelLayout | None = None
    node_labels: NodeLabelRule = Field(default_factory=NodeLabelRule)
    wall_time_s: Length | None = None
    duration_s: Length | None = None
    leaves_in_s: Delay | None = None

    @property
    @abstractmethod
    def num_nodes(self) -> int:
        """The number of hosts of its shape: given as a number, or by the hosts on which it runs."""

    @property
    def shape(self) -> Shape:
        return Shape.model_construct(
            nodes=self.num_nodes,
            gpus_per_node=self.gpus_per_node,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
        )

    @property
    def topology(self) -> TopologyRule:
        return TopologyRule(required=self.required, preferred=self.preferred, slices=self.slices, balance=self.balance)


class RunningJob(JobFields):
    """A running job. It has the first free slots of ``nodes``, which are its hosts in rank order.

    ``last_checkpoint_s`` may be before ``started_s``: of the attempt before this one.
    """

    nodes: tuple[Printable, ...] = Field(min_length=1, strict=False)
    started_s: Past = 0.0
    last_checkpoint_s: Past | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)

    @model_validator(mode="after")
    def _runs_on_hosts_that_it_takes(self) -> Self:
        if len(set(self.nodes)) < len(self.nodes):
            twice = next(name for name in self.nodes if self.nodes.count(name) > 1)
            raise ValueError(f"{self.name}: nodes names {twice} twice")
        if not (self.min_nodes or 1) <= len(self.nodes) <= (self.max_nodes or len(self.nodes)):
            raise ValueError(f"{self.name}: nodes must be from min_nodes to max_nodes; they are {len(self.nodes)}")
        return self


class QueuedJob(JobFields):
    """A pending job.

    ``total_gpus`` in place of ``nodes``: the sum over its hosts, ``gpus_per_node`` of each, or all of one.
    ``queued_s``: no later than it is submitted.
    """

    OTHER_KEYS: ClassVar[tuple[str, ...]] = ("total_gpus",)

    nodes: Count = 1
    queued_s: Annotated[float, Field(ge=-MOST_S, le=MOST_S)] = 0.0

    @model_validator(mode="before")
    @classmethod
    def _total_is_of_hosts(cls, text: Any) -> Any:
        if not isinstance(text, dict) or "total_gpus" not in text:
            return text
        rest = {name: value for name, value in text.items() if name != "total_gpus"}
        total, each = text["total_gpus"], text.get("gpus_per_node", 8)
        if "nodes" in text:
            raise ValueError("has both nodes and total_gpus: give one of them")
        if type(each) is not int or each < 1:
            return rest  # which its own rule refuses
        if type(total) is not int or total < 1:
            raise ValueError("total_gpus must be a whole number, 1 or more")
        if total > each and total % each:
            raise ValueError(f"total_gpus {total} is no whole number of hosts with {each} GPUs each (gpus_per_node)")
        return {**rest, "nodes": max(total // each, 1), "gpus_per_node": min(total, each)}

    @property
    def num_nodes(self) -> int:
        return self.nodes

    @model_validator(mode="after")
    def _requests_a_valid_size(self) -> Self:
        if not (self.min_nodes or self.nodes) <= self.nodes <= (self.max_nodes or self.nodes):
            raise ValueError(f"{self.name}: nodes must be from min_nodes to max_nodes")
        return self


class Jobs(StrictModel):
    running: tuple[RunningJob, ...] = Field(default=(), strict=False)
    queued: tuple[QueuedJob, ...] = Field(default=(), strict=False)
