"""A job's demands on its place, as the solver takes them: slices, spread, labels, also from its layout."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from muster.domain.job.placement_spec import NodeLabelRule, ParallelLayout, TopologyRule
from muster.domain.job.spec import Shape
from muster.domain.policy.placement import PlacementPolicy
from scheduler.solve.placement_rule import ANYWHERE, LabelRule, PipelineOrder, PlacementRule, Preference, Slice


class PlaceRequest(Protocol):
    """The part of a job's specification about its place."""

    @property
    def shape(self) -> Shape: ...
    @property
    def topology(self) -> TopologyRule: ...
    @property
    def layout(self) -> ParallelLayout | None: ...
    @property
    def node_labels(self) -> NodeLabelRule: ...


class Fault(NamedTuple):
    """A demand that can never be met: its pointer in the specification, its stable code, and what to do."""

    pointer: str
    code: str
    detail: str


def rule_of(spec: PlaceRequest, policy: PlacementPolicy, sites: frozenset[str] | None = None) -> PlacementRule:
    """Return the placement rule of a specification without ``faults_of``. ``sites``: of its tenant's residency rule.

    If the policy has changed since, the job may ask for levels that do not exist. Then it stays pending.
    """
    asked = _requested(spec, policy)
    slices = _chain(asked, policy.levels) or tuple(asked)
    rule = PlacementRule(
        slices=slices,
        preferred=tuple(_preferences(spec, policy, asked, slices)),
        balance=spec.topology.balance,
        labels=labels_of(spec.node_labels, sites),
    )
    return ANYWHERE if rule == ANYWHERE else rule  # most ask for nothing: one object compares without a hash


def labels_of(labels: NodeLabelRule, sites: frozenset[str] | None) -> LabelRule:
    """Return the rule about the labels of hosts. ``sites``: of its tenant's residency rule."""
    return LabelRule(
        required=tuple((name, frozenset(values)) for name, values in sorted(labels.required.items())),
        forbidden=tuple((name, frozenset(values)) for name, values in sorted(labels.forbidden.items())),
        sites=sites,
    )


def has_tp_across_nodes(spec: PlaceRequest) -> bool:
    """Return whether its tensor-parallel groups may span NVLink domains, as its submitter has allowed."""
    layout = spec.layout
    return layout is not None and layout.allow_tp_across_nodes and layout.tp > spec.shape.num_ranks_per_node


def faults_of(spec: PlaceRequest, policy: PlacementPolicy) -> Iterator[Fault]:
    """Yield the demands that no wait could ever meet. The shape itself checks nodes × GPUs."""
    topology, shape = spec.topology, spec.shape
    named = [("required", topology.required), ("preferred", topology.preferred), ("balance", topology.balance)]
    named += [(f"slices/{number}/level", one.level) for number, one in enumerate(topology.slices)]
    for name, level in named:
        if level is not None and level not in policy.levels:
            known = ", ".join(policy.levels)
            yield Fault(
                f"/topology/{name}", "unknown_level", f"the fleet's tree has no level {level}, only: {known or 'none'}"
            )
    is_rigid = not topology.slices and topology.balance is None and spec.layout is None
    if shape.is_elastic and not is_rigid:
        yield Fault(
            "/shape",
            "elastic",
            "the size of an elastic job changes: leave out its slices, balance and layout, or give it one size",
        )
        return
    yield from _faults_of_slices(spec, policy)
    yield from _faults_of_layout(spec, policy)


def _faults_of_slices(spec: PlaceRequest, policy: PlacementPolicy) -> Iterator[Fault]:
    per_host, num_ranks = spec.shape.num_ranks_per_node, spec.shape.nodes * spec.shape.num_ranks_per_node
    for number, one in enumerate(spec.topology.slices):
        pointer = f"/topology/slices/{number}/ranks"
        if one.ranks % per_host:
            detail = f"{one.ranks} ranks fill no whole number of hosts with {per_host} ranks each"
            yield Fault(pointer, "uneven_slices", detail)
        elif num_ranks % one.ranks:
            yield Fault(pointer, "uneven_slices", f"the job's {num_ranks} ranks are no multiple of {one.ranks}")
    asked = [(one.level, one.ranks) for one in spec.topology.slices if one.level in policy.levels]
    in_order = sorted(asked, key=lambda one: policy.levels.index(one[0]))
    for (wide, outer), (narrow, inner) in pairwise(in_order):
        if outer % inner:
            detail = f"{outer} ranks of one {wide} are no multiple of the {inner} ranks of one {narrow}"
            yield Fault("/topology/slices", "uneven_slices", detail)
    if any(_is_wider(level, spec.topology.balance, policy) for level, _ in asked):
        yield _torn_apart("slices", spec.topology.balance)


def _is_wider(level: str, balance: str | None, policy: PlacementPolicy) -> bool:
    """Return whether the level is wider than the one of the even spread, which could then tear it apart."""
    known = policy.levels
    return balance in known and level in known and known.index(level) < known.index(balance)


def _torn_apart(what: str, balance: str | None) -> Fault:
    detail = (
        f"{what} of a level wider than {balance} cannot be spread evenly over {balance}, which would divide them: "
        "name their own level as `balance`"
    )
    return Fault("/topology/balance", "within_slices", detail)


def _faults_of_layout(spec: PlaceRequest, policy: PlacementPolicy) -> Iterator[Fault]:
    layout, per_host = spec.layout, spec.shape.num_ranks_per_node
    if layout is None:
        return
    num_ranks = spec.shape.nodes * per_host
    if layout.num_ranks != num_ranks:
        words = f"pp {layout.pp} × dp {layout.dp} × fsdp {layout.fsdp} × tp {layout.tp}"
        yield Fault("/layout", "not_its_ranks", f"{words} are {layout.num_ranks} ranks; the shape has {num_ranks}")
    elif layout.tp <= per_host and per_host % layout.tp:
        detail = (
            f"hosts with {per_host} ranks hold no whole number of tensor-parallel groups of {layout.tp}: "
            f"take a tp that divides {per_host}, or a multiple of it"
        )
        yield Fault("/layout/tp", "tp_across_nodes", detail)
    elif layout.tp > per_host and layout.tp % per_host:
        detail = (
            f"{layout.tp} ranks of a tensor-parallel group fill no whole number of hosts with {per_host} each: "
            f"take a multiple of {per_host}"
        )
        yield Fault("/layout/tp", "tp_across_nodes", detail)
    elif layout.tp > per_host and policy.nvlink_level is None and not layout.allow_tp_across_nodes:
        detail = (
            f"a tensor-parallel group of {layout.tp} ranks would span hosts of {per_host}, and an NVLink domain is one "
            "host here: take tp up to that, or set `allow_tp_across_nodes`, and it runs over the network"
        )
        yield Fault("/layout/tp", "tp_across_nodes", detail)
    else:
        asked = _requested(spec, policy)
        groups = () if layout.allow_tp_across_nodes else _tensor_slices(spec, policy)
        if any(_is_wider(one.level, spec.topology.balance, policy) for one in groups):
            yield _torn_apart("tensor-parallel groups", spec.topology.balance)
        elif asked and _chain(asked, policy.levels) is None:
            detail = (
                f"its tensor-parallel groups of {layout.tp} ranks and the slices of `topology` cut each other: "
                "let one be a multiple of the other"
            )
            yield Fault("/layout/tp", "uneven_slices", detail)


def _requested(spec: PlaceRequest, policy: PlacementPolicy) -> list[Slice]:
    per_host, layout = spec.shape.num_ranks_per_node, spec.layout
    asked = [Slice(one.level, one.ranks // per_host) for one in spec.topology.slices]
    may_span = layout is not None and layout.allow_tp_across_nodes
    return asked if may_span else [*asked, *_tensor_slices(spec, policy)]


def _tensor_slices(spec: PlaceRequest, policy: PlacementPolicy) -> list[Slice]:
    """Return the slices of tensor-parallel groups that are wider than a host, if NVLink joins hosts."""
    per_host, layout = spec.shape.num_ranks_per_node, spec.layout
    if layout is None or layout.tp <= per_host or policy.nvlink_level is None:
        return []
    return [Slice(policy.nvlink_level, layout.tp // per_host)]


def _preferences(
    spec: PlaceRequest, policy: PlacementPolicy, requested: Sequence[Slice], slices: Sequence[Slice]
) -> Iterator[Preference]:
    """Yield the slices that are tried before ``slices`` alone, the best first.

    These are: a whole replica of the model under one leaf, with the stages of its pipeline; else the ranks that shard
    one stage of it; else each tensor-parallel group in one NVLink domain, if its submitter lets it span several.
    """
    layout, per_host = spec.layout, spec.shape.num_ranks_per_node
    if layout is None:
        return
    under_leaf: list[tuple[int, PipelineOrder | None]] = []
    order = _pipeline_order(layout, per_host, spec.shape.nodes, requested)
    if order is not None:
        under_leaf.append((order.stages * order.hosts, order))
    if layout.fsdp * layout.tp % per_host == 0:
        under_leaf.append((layout.fsdp * layout.tp // per_host, None))
    told = [(*slices,)]
    for nodes, by in [*(under_leaf if policy.leaf_level else ()), (1, None)]:
        outer = [Slice(policy.leaf_level, nodes)] if policy.leaf_level and nodes > 1 else []
        chain = _chain([*requested, *_tensor_slices(spec, policy), *outer], policy.levels)
        is_torn = any(_is_wider(one.level, spec.topology.balance, policy) for one in chain or ())
        if chain and chain not in told and not is_torn:
            told.append(chain)
            yield Preference(chain, by)


def _pipeline_order(
    layout: ParallelLayout, per_host: int, num_nodes: int, requested: Sequence[Slice]
) -> PipelineOrder | None:
    """Return the order in which a pipeline's stages are neighbours. By rank they are far apart: ``pp`` varies slowest.

    None: there is one stage or one replica, so that ranks follow each other as they are; or hosts have parts of several
    stages, or required slices by rank would be torn apart.
    """
    sharded = layout.fsdp * layout.tp
    hosts = max(sharded // per_host, 1)
    replicas, rest = divmod(num_nodes, layout.pp * hosts)
    is_whole = sharded % per_host == 0 or per_host % sharded == 0
    if layout.pp == 1 or replicas < 2 or rest or not is_whole:
        return None
    if any(hosts % one.nodes for one in requested):
        return None
    return PipelineOrder(layout.pp, hosts)


def _chain(requested: Iterable[Slice], levels: Sequence[str]) -> tuple[Slice, ...] | None:
    """Return the widest level first, each a multiple of the next, without slices that a narrower one implies.

    None: two of them cut each other, or a level is unknown.
    """
    wanted = list(requested)
    if any(one.level not in levels for one in wanted):
        return None
    chain: list[Slice] = []
    for one in sorted(wanted, key=lambda one: (-levels.index(one.level), -one.nodes)):
        inner = chain[0].nodes if chain else 1
        if max(inner, one.nodes) % min(inner, one.nodes):
            return None
        if one.nodes > inner and (not chain or chain[0].level != one.level):
            chain.insert(0, one)
    return tuple(chain)
