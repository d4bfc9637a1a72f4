"""The form of a scenario: what stands at second 0, and what happens after it. Times are seconds, before it negative."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from muster.domain.ids import TenantId
from muster.domain.job_spec import Shape
from muster.domain.placement_spec import NodeLabelRule, ParallelLayout, SliceRule, TopologyRule
from muster.domain.policy import DEFAULT_POLICY, Policy
from muster.domain.strict import Name, StrictModel, Text
from scheduler.job_rules import faults_of
from scheduler.tenancy import Member, Tenancy, refusal_of_parent
from scheduler.tenancy import Quota as TenantQuota
from simulator.scenarios.crashing import Crash
from simulator.scenarios.fleet_form import GpuState, Quota, TenantPlace, Topology

MOST_EVENTS: Final = 10_000
Number = Annotated[float, Field(ge=-31_536_000, le=31_536_000, strict=False)]
Length = Annotated[float, Field(gt=0, le=31_536_000, strict=False)]
Count = Annotated[int, Field(ge=1, le=100_000)]


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
    """``total_gpus`` in place of ``nodes``: the sum over its hosts, ``gpus_per_node`` of each, or all of one."""

    nodes: Count = 1
    queued_s: Number = 0.0

    @model_validator(mode="before")
    @classmethod
    def _total_is_of_hosts(cls, said: Any) -> Any:
        if not isinstance(said, dict) or "total_gpus" not in said:
            return said
        rest = {name: value for name, value in said.items() if name != "total_gpus"}
        total, each = said["total_gpus"], said.get("gpus_per_node", 8)
        if "nodes" in said:
            raise ValueError("says either nodes or total_gpus")
        if type(total) is not int or type(each) is not int or total < 1 or each < 1:
            raise ValueError("total_gpus must be a whole number, 1 or more")
        if total > each and total % each:
            raise ValueError(f"total_gpus {total} is no whole number of hosts with {each} GPUs each")
        return {**rest, "nodes": max(total // each, 1), "gpus_per_node": min(total, each)}

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
    """One of ``submit``, ``plan``, ``cancel``, ``end``, ``change``, ``restart`` or ``crash``, at its second.

    ``plan``: only asked about. ``restart``: the control plane comes back, and knows what it had stored, no more.
    """

    at_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)]
    submit: QueuedJob | None = None
    plan: QueuedJob | None = None
    cancel: Text | None = None
    end: Text | None = None
    change: GpuState | None = None
    restart: Literal[True] | None = None
    crash: Crash | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        said = (self.submit, self.plan, self.cancel, self.end, self.change, self.restart, self.crash)
        if sum(one is not None for one in said) != 1:
            raise ValueError("says one of submit, plan, cancel, end, change, restart and crash")
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
        placement = self.rules.placement
        for job in (*jobs, *(one.plan for one in self.happenings if one.plan)):
            for fault in faults_of(job, placement):
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
    def _what_ends_is_known(self) -> Self:
        jobs = [*self.jobs.running, *self.jobs.queued, *(one.submit for one in self.happenings if one.submit)]
        names = {job.name for job in jobs}
        for one in self.happenings:
            for word, name in (("cancel", one.cancel), ("end", one.end)):
                if name is not None and name not in names:
                    raise ValueError(f"requests: {word} names {name}, and no job of the scenario is named so")
        return self

    @model_validator(mode="after")
    def _each_quota_is_said_once(self) -> Self:
        told = [(one.tenant, one.tier) for one in self.all_quotas]
        twice = next((each for each in told if told.count(each) > 1), None)
        if twice is not None:
            raise ValueError(f"the quota of {twice[0]} in {twice[1]} is said twice")
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
                for one in self.all_quotas
            },
            {(TenantId(one.name), tier): used for one in self.tenants for tier, used in one.used_gpus.items()},
        )

    @property
    def all_quotas(self) -> tuple[Quota, ...]:
        own = [
            Quota(tenant=one.name, tier=tier, **dict(said)) for one in self.tenants for tier, said in one.quota.items()
        ]
        return (*self.quotas, *own)

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
