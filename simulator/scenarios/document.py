"""The form of a scenario: what stands at second 0, and what happens after it. Times are seconds, before it negative."""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from muster.domain.ids import TenantId
from muster.domain.job_spec import Shape
from muster.domain.placement_spec import NodeLabelRule, ParallelLayout, SliceRule, TopologyRule
from muster.domain.policy import DEFAULT_POLICY, Policy
from muster.domain.states import Contact, Standing
from muster.domain.strict import Name, StrictModel, Text
from scheduler.job_rules import faults_of
from scheduler.tenancy import Member, Tenancy, refusal_of_parent
from scheduler.tenancy import Quota as TenantQuota

MOST_EVENTS: Final = 10_000
_RANGE: Final = re.compile(r"(.*)\[(\d{1,9})-(\d{1,9})\]")
Number = Annotated[float, Field(ge=-31_536_000, le=31_536_000, strict=False)]
Length = Annotated[float, Field(gt=0, le=31_536_000, strict=False)]
MOST_NODES: Final = 100_000
Count = Annotated[int, Field(ge=1, le=100_000)]
Gpus = Annotated[int, Field(ge=0, le=1_000_000)]


class Nodes(StrictModel):
    """``names``: one, or a run of them such as ``a[0-3]``. ``path``: its domains, one a level; empty: nobody knows.

    ``attributes``: their labels.
    """

    names: Text
    path: tuple[Text, ...] = Field(default=(), strict=False)
    gpus: Annotated[int, Field(ge=1, le=64)] = 8
    model: Text = "h100"
    attributes: dict[Name, Text] = Field(default_factory=dict)

    @property
    def number(self) -> int:
        found = _RANGE.fullmatch(self.names)
        return 1 if found is None else max(int(found.group(3)) - int(found.group(2)) + 1, 0)

    def each(self) -> Iterator[str]:
        found = _RANGE.fullmatch(self.names)
        if found is None:
            yield self.names
            return
        stem, first, last = found.group(1), int(found.group(2)), int(found.group(3))
        yield from (f"{stem}{number}" for number in range(first, last + 1))


class Topology(StrictModel):
    """``levels``: names of the tree's levels between fleet and node, widest first."""

    levels: tuple[Name, ...] = Field(default=("rack",), strict=False)
    nodes: tuple[Nodes, ...] = Field(min_length=1, strict=False)

    @model_validator(mode="after")
    def _are_not_too_many(self) -> Self:
        if sum(nodes.number for nodes in self.nodes) > MOST_NODES:
            raise ValueError(f"has more than {MOST_NODES:,} nodes")
        return self

    @model_validator(mode="after")
    def _paths_have_a_name_a_level(self) -> Self:
        for nodes in self.nodes:
            if nodes.path and len(nodes.path) != len(self.levels):
                raise ValueError(
                    f"the path of {nodes.names} has {len(nodes.path)} names, and there are the levels "
                    f"{', '.join(self.levels)}"
                )
        return self


class GpuState(StrictModel):
    """Of GPUs of a node, all where ``slots`` are not said. ``score``: 1 is sound, 0 is broken. ``quarantines``: of its
    board, within the time that the policy counts them.
    """

    node: Text
    slots: tuple[int, ...] | None = Field(default=None, strict=False)
    standing: Standing = Field(default=Standing.HEALTHY, strict=False)
    contact: Contact = Field(default=Contact.LIVE, strict=False)
    is_cordoned: bool = False
    score: Annotated[float, Field(ge=0, le=1, strict=False)] = 1.0
    quarantines: Annotated[int, Field(ge=0, le=1000)] = 0


class Quota(StrictModel):
    """GPUs of a tenant and all below it in a tier. ``borrowable_gpus``, ``ceiling_gpus``: None: no limit."""

    tenant: Text
    tier: Text = "on_demand"
    guaranteed_gpus: Gpus = 0
    borrowable_gpus: Gpus | None = None
    ceiling_gpus: Gpus | None = None


class TenantPlace(StrictModel):
    """``used_gpus``: what it held in the past, on the average, those of long ago counting less and less."""

    name: Text
    parent: Text | None = None
    weight: Annotated[float, Field(ge=0.001, le=1_000_000, strict=False)] = 1.0
    used_gpus: dict[str, Annotated[float, Field(ge=0, le=1e9, strict=False)]] = Field(default_factory=dict)


class JobFields(StrictModel):
    """``duration_s``: how long it runs; without one it does not end by itself.

    ``leaves_in_s``: so soon after a notice it has saved and let go; without it at the deadline. What it asks of its
    place is as a job's specification has it, with a rank a GPU.
    """

    name: Text
    tenant: Text = "tenant"
    tier: Text = "on_demand"
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
    leaves_in_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)] | None = None

    @property
    @abstractmethod
    def num_nodes(self) -> int:
        """Of its shape: said as a number, or by the hosts on which it runs."""

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
    """It holds the first free slots of ``nodes``, which are its hosts in rank order."""

    nodes: tuple[Text, ...] = Field(min_length=1, strict=False)
    started_s: Number = 0.0
    last_checkpoint_s: Number | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)


class QueuedJob(JobFields):
    nodes: Count = 1
    queued_s: Number = 0.0

    @property
    def num_nodes(self) -> int:
        return self.nodes

    @model_validator(mode="after")
    def _wishes_for_a_size_that_it_takes(self) -> Self:
        if not (self.min_nodes or self.nodes) <= self.nodes <= (self.max_nodes or self.nodes):
            raise ValueError(f"{self.name}: nodes must be from min_nodes to max_nodes")
        return self


class Jobs(StrictModel):
    running: tuple[RunningJob, ...] = Field(default=(), strict=False)
    queued: tuple[QueuedJob, ...] = Field(default=(), strict=False)


class Happening(StrictModel):
    """One of ``submit``, ``plan``, ``cancel``, ``end``, ``change`` or ``restart``, at its second.

    ``plan``: only asked about. ``restart``: the control plane comes back, and knows what it had stored, no more.
    """

    at_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)]
    submit: QueuedJob | None = None
    plan: QueuedJob | None = None
    cancel: Text | None = None
    end: Text | None = None
    change: GpuState | None = None
    restart: Literal[True] | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        said = (self.submit, self.plan, self.cancel, self.end, self.change, self.restart)
        if sum(one is not None for one in said) != 1:
            raise ValueError("says one of submit, plan, cancel, end, change and restart")
        return self


class Maintenance(StrictModel):
    """Planned work on ``nodes``, or on all whose path has ``domain``, from ``starts_s`` on, for ``lasts_s``.

    Who runs there is told ``lead_s`` before it starts, and has left by then.
    """

    nodes: tuple[Text, ...] = Field(default=(), strict=False)
    domain: Text | None = None
    starts_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)]
    lasts_s: Length = 3600.0
    lead_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)] = 120.0

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if bool(self.nodes) == (self.domain is not None):
            raise ValueError("says either nodes or a domain")
        return self


class Scenario(StrictModel):
    """``policy``: what differs from the built-in one. It is played until ``until_s``, or to its last request."""

    about: Text
    topology: Topology
    gpus: tuple[GpuState, ...] = Field(default=(), strict=False)
    tenants: tuple[TenantPlace, ...] = Field(default=(), strict=False)
    quotas: tuple[Quota, ...] = Field(default=(), strict=False)
    jobs: Jobs = Field(default_factory=Jobs)
    failures_per_gpu_hour: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    maintenance: tuple[Maintenance, ...] = Field(default=(), strict=False)
    requests: tuple[Happening, ...] = Field(default=(), max_length=MOST_EVENTS, strict=False)
    faults: tuple[Happening, ...] = Field(default=(), max_length=MOST_EVENTS, strict=False)
    policy: dict[str, Any] = Field(default_factory=dict)
    until_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)] = 0.0

    @property
    def rules(self) -> Policy:
        """The built-in policy with the topology's levels, under what it overrides.

        Raises ValidationError: that makes no policy.
        """
        leaf = self.topology.levels[-1] if self.topology.levels else None
        own = {"placement": {"levels": self.topology.levels, "leaf_level": leaf}}
        base = _merged(DEFAULT_POLICY.model_dump(mode="json"), own)
        return Policy.model_validate(_merged(base, self.policy), strict=False)

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        nodes = {name for nodes in self.topology.nodes for name in nodes.each()}
        if len(nodes) != sum(1 for nodes in self.topology.nodes for _ in nodes.each()):
            raise ValueError("topology.nodes names a node twice")
        jobs = [*self.jobs.running, *self.jobs.queued, *(one.submit for one in self.happenings if one.submit)]
        names = [job.name for job in jobs]
        for job in jobs:
            for fault in faults_of(job, self.rules.placement):
                raise ValueError(f"{job.name}: {fault.pointer}: {fault.detail}")
        if len(set(names)) < len(names):
            raise ValueError(f"two jobs are named {next(name for name in names if names.count(name) > 1)}")
        told = [one.node for one in self.gpus] + [one.change.node for one in self.happenings if one.change is not None]
        told += [node for job in self.jobs.running for node in job.nodes]
        told += [node for window in self.maintenance for node in window.nodes]
        domains = {None, *(domain for each in self.topology.nodes for domain in each.path)}
        lost = [window.domain for window in self.maintenance if window.domain not in domains]
        if lost:
            raise ValueError(f"maintenance: no path of the topology has the domain {lost[0]}")
        unknown = sorted(set(told) - nodes)
        if unknown:
            raise ValueError(f"no node of the topology is named {', '.join(unknown)}")
        return self

    @model_validator(mode="after")
    def _tenants_are_a_tree(self) -> Self:
        parents: dict[TenantId, TenantId | None] = {}
        for one in self.tenants:
            if one.name in parents:
                raise ValueError(f"tenants: {one.name} is named twice")
            parents[TenantId(one.name)] = None
        for one in self.tenants:
            if one.parent is None:
                continue
            if one.parent not in parents:
                raise ValueError(f"tenants: the parent of {one.name} is {one.parent}, which is not among them")
            refusal = refusal_of_parent(parents, TenantId(one.name), TenantId(one.parent))
            if refusal is not None:
                raise ValueError(f"tenants: {one.name} cannot be under {one.parent}: {refusal}")
            parents[TenantId(one.name)] = TenantId(one.parent)
        return self

    @property
    def tenancy(self) -> Tenancy:
        return Tenancy(
            {
                TenantId(one.name): Member(None if one.parent is None else TenantId(one.parent), one.weight)
                for one in self.tenants
            },
            {
                (TenantId(one.tenant), one.tier): TenantQuota(
                    one.guaranteed_gpus, one.borrowable_gpus, one.ceiling_gpus
                )
                for one in self.quotas
            },
            {(TenantId(one.name), tier): used for one in self.tenants for tier, used in one.used_gpus.items()},
        )

    @property
    def happenings(self) -> tuple[Happening, ...]:
        """Faults before requests of the same second."""
        return tuple(sorted((*self.faults, *self.requests), key=lambda one: one.at_s))


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(base[key], value) if isinstance(value, Mapping) and isinstance(base.get(key), Mapping) else value
        for key, value in over.items()
    }
    return {**base, **both}


DecisionKind = Literal[
    "placed",
    "planned",
    "waits",
    "held",
    "reclaim",
    "withdrawn",
    "shrunk",
    "grown",
    "notice",
    "ended",
    "stopped",
    "interrupted",
]
