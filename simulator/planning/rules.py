"""The scheduling rules of a world: its policy, its tenants' quotas, the place of its hosts, and planned work.

In one of four worlds ``scheduler.planner`` decides by these rules. In the others jobs that fit are chosen at random,
which costs little and gives more races between commits.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from muster.domain.ids import NodeId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.tiers import TierPolicy
from scheduler.quota.firm_tiers import is_firm, most_in_idle_fleet
from scheduler.quota.tenancy import Member, Quota, Tenancy
from scheduler.solve.placement_rule import ANYWHERE, PlacementRule, Slice
from simulator.world.rows import JobRow
from simulator.world.settings import Settings

LEVELS: Final = ("block", "rack")
CORP: Final = TenantId("corp")
TENANTS: Final = ("acme", "rival")
_PLANNED_SHARE: Final = 1 / 4
_COHORT: Final = "model=H100"
_FRESH: Final = ("HEALTHY", "PROBATION")
_LARGEST_GANG: Final = 4
_FIRM_OF_DRAWN: Final = 4
"""Three tenants with guarantees in two firm tiers have at most three quarters of a fleet."""


@dataclass(frozen=True, slots=True)
class Window:
    """Planned work on a node.

    It is known from ``declared_ms`` on; jobs there get their stop requests at ``closes_ms``.
    """

    node_id: NodeId
    declared_ms: int
    closes_ms: int
    starts_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one world.

    ``is_planned``: the planner decides; else the choice is random and the other rules are not used. ``paths``: each
    host's domain at each of ``LEVELS``, an empty name if unknown; ``costs``: its ``GpuView.health_cost``.
    ``pause_beats``: the least time between two plans.
    """

    is_planned: bool = False
    num_schedulers: int = 1
    pause_beats: int = 1
    policy: Policy = DEFAULT_POLICY
    tenancy: Tenancy = field(default_factory=Tenancy)
    paths: Mapping[NodeId, tuple[str, ...]] = field(default_factory=dict)
    cohorts: Mapping[NodeId, str] = field(default_factory=dict)
    costs: Mapping[NodeId, int] = field(default_factory=dict)
    failures_per_gpu_hour: float = 0.0
    windows: tuple[Window, ...] = ()

    def domain(self, node_id: NodeId, level: str) -> str:
        """Return the host's domain; empty if unknown."""
        return self.paths[node_id][LEVELS.index(level)]

    def most_gpus(self, tenant: str, tier: str, num_gpus: int) -> int | None:
        """Return the most GPUs that the tenant may have in an idle fleet of so many; None: no limit.

        Limits are its own quota, those above it, and what is guaranteed to others.
        """
        line = self.tenancy.line(TenantId(tenant))
        quotas = (self.tenancy.quotas.get((above, tier)) for above in line)
        limits = [one.most for one in quotas if one is not None and one.most is not None]
        left = most_in_idle_fleet(self.policy, self.tenancy, TenantId(tenant), tier, num_gpus)
        return min(limits if left is None else [*limits, left], default=None)


RANDOM_RULES: Final = Rules()


def draw_rules(rng: Random, settings: Settings, nodes: Sequence[NodeId], *, is_planned: bool | None = None) -> Rules:
    """Return the rules of a world. ``is_planned``: None makes it true in one of four worlds."""
    is_drawn = rng.random() < _PLANNED_SHARE
    if not (is_drawn if is_planned is None else is_planned):
        return RANDOM_RULES
    policy = _draw_policy(rng, settings)
    return Rules(
        is_planned=True,
        num_schedulers=rng.choice((1, 1, 2)),
        pause_beats=rng.choice((1, 2, 4)),
        policy=policy,
        tenancy=_draw_tenancy(rng, settings, policy),
        paths=_draw_paths(rng, nodes),
        cohorts=_draw_cohorts(rng, nodes),
        costs={node_id: rng.choice((0, 0, 0, 2_000, 10_000)) for node_id in nodes},
        failures_per_gpu_hour=rng.choice((0.0, 0.001, 0.01)),
        windows=_draw_windows(rng, settings, nodes),
    )


def _draw_policy(rng: Random, settings: Settings) -> Policy:
    """Return the default policy with the times of this world: its beats are seconds, not hours."""
    beat_s, default = settings.timers.heartbeat_ms / 1000, DEFAULT_POLICY
    queue = {
        "ageing_exponent": rng.choice((0.0, 1.0, 1.5)),
        "expected_run_s": beat_s * 150,
        "holds_per_cohort": rng.choice((0, 1, 1, 2)),
        "overtaken_work_bound_s": beat_s * rng.choice((5.0, 50.0, 5_000.0)),
        "starvation_s": beat_s * rng.choice((20.0, 5_000.0)),
    }
    reclaim = {
        "cap_fraction": rng.choice((0.0, 0.25, 0.5, 1.0, 1.0)),
        "window_s": beat_s * rng.choice((40.0, 200.0)),
        "restart_cost_s": beat_s * 2,
        "shrink_cost_factor": rng.choice((0.0, 1.0, 10.0)),
    }
    elastic = {"grow_after_s": beat_s * rng.choice((8.0, 30.0)), "grace_s": beat_s * 3}
    spares = default.recovery.spares.model_copy(update={"confidence": rng.choice((None, None, 0.99))})
    recovery = {"wait_for_replacement_s": beat_s * rng.choice((0.0, 5.0, 20.0)), "spares": spares}
    return default.model_copy(
        update={
            "tiers": _draw_tiers(rng, beat_s),
            "queue": default.queue.model_copy(update=queue),
            "reclaim": default.reclaim.model_copy(update=reclaim),
            "elastic": default.elastic.model_copy(update=elastic),
            "recovery": default.recovery.model_copy(update=recovery),
            "placement": default.placement.model_copy(update={"levels": LEVELS}),
        }
    )


def _draw_tiers(rng: Random, beat_s: float) -> dict[str, TierPolicy]:
    def notice_s() -> float:
        return beat_s * rng.randint(1, 12)

    def min_run_s() -> float:
        return beat_s * rng.choice((0, 0, rng.randint(1, 20)))

    is_lent = rng.random() < 0.4
    spot = (*_FRESH, "SUSPECT") if rng.random() < 0.5 else _FRESH
    return {
        "reserved": TierPolicy(priority=300, standings=_FRESH),
        "on_demand": TierPolicy(
            priority=200, standings=_FRESH, notice_s=notice_s() if is_lent else None, min_run_s=min_run_s()
        ),
        "spot": TierPolicy(priority=100, standings=spot, notice_s=notice_s(), min_run_s=min_run_s()),
    }


def _draw_tenancy(rng: Random, settings: Settings, policy: Policy) -> Tenancy:
    """Return the tenants and their quotas. Firm guarantees leave a part of the fleet to jobs of others."""
    total = settings.num_hosts * settings.gpus_per_host
    members = {
        TenantId(name): Member(CORP if rng.random() < 0.5 else None, rng.choice((1.0, 1.0, 3.0))) for name in TENANTS
    }
    quotas: dict[tuple[TenantId, str], Quota] = {}
    for tenant in (CORP, *members):
        for tier in ("reserved", "on_demand", "spot"):
            if rng.random() < 0.5:
                guaranteed = rng.randint(0, total // 2) // (_FIRM_OF_DRAWN if is_firm(policy, tier) else 1)
                borrowable = rng.choice((None, rng.randint(1, total)))
                ceiling = rng.choice((None, rng.randint(max(guaranteed, 1), total)))
                quotas[tenant, tier] = Quota(guaranteed, borrowable, ceiling)
    return Tenancy(members, quotas)


def _draw_paths(rng: Random, nodes: Sequence[NodeId]) -> dict[NodeId, tuple[str, ...]]:
    rack_size, block_size = rng.randint(1, 3), rng.randint(1, 2)
    paths: dict[NodeId, tuple[str, ...]] = {}
    for number, node_id in enumerate(nodes):
        rack = number // rack_size
        is_known = rng.random() > 0.05
        paths[node_id] = (f"block-{rack // block_size + 1}", f"rack-{rack + 1}") if is_known else ("", "")
    return paths


def _draw_cohorts(rng: Random, nodes: Sequence[NodeId]) -> dict[NodeId, str]:
    other = rng.choice((0.0, 0.0, 0.3))
    return {node_id: "model=A100" if rng.random() < other else _COHORT for node_id in nodes}


def _draw_windows(rng: Random, settings: Settings, nodes: Sequence[NodeId]) -> tuple[Window, ...]:
    beat_ms = settings.timers.heartbeat_ms
    windows = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        declared_ms = int(rng.random() * settings.horizon_ms * 0.8)
        closes_ms = declared_ms + beat_ms * rng.choice((0, 10, 60))
        starts_ms = closes_ms + beat_ms * rng.choice((3, 10))
        until_ms = starts_ms + beat_ms * rng.randint(5, 60)
        windows.append(Window(rng.choice(list(nodes)), declared_ms, closes_ms, starts_ms, until_ms))
    return tuple(windows)


def shaped(row: JobRow, rules: Rules, settings: Settings, wanted: Random) -> JobRow:
    """Return the job, changed so that these rules can place it in an empty fleet.

    Else it would rightly be pending without end.
    """
    tier = wanted.choice(("reserved", "on_demand", "spot", "spot"))
    level = wanted.choice((None, None, None, "rack", "rack", "block"))
    hosts = _hosts_by_domain(rules, level)
    most_gpus = rules.most_gpus(row.tenant, tier, settings.num_hosts * settings.gpus_per_host)
    if not hosts:
        level, hosts = None, _hosts_by_domain(rules, None)
    per_node = wanted.choice((row.gpus_per_node, settings.gpus_per_host))
    per_node = per_node if most_gpus is None else min(per_node, most_gpus)
    within = _LARGEST_GANG if most_gpus is None else most_gpus // per_node
    most = min(max(hosts.values()), within, _LARGEST_GANG)
    nodes = min(wanted.choice((1, 2, 2, 3, 4)), most)
    placement = wanted.choice((_slices, _slices, _spread, _anywhere, *[_anywhere] * 4))(rules, nodes, level)
    is_elastic = placement is ANYWHERE and wanted.random() < 0.5
    policy = rules.policy.tier(tier)
    return replace(
        row,
        nodes=nodes,
        gpus_per_node=per_node,
        min_nodes=wanted.randint(1, nodes) if is_elastic else nodes,
        max_nodes=wanted.randint(nodes, most) if is_elastic else None,
        tier=tier,
        required_level=level,
        preferred_level=wanted.choice((None, "rack")) if level in {None, "block"} else None,
        placement=placement,
        notice_ms=None if policy.notice_s is None else int(policy.notice_s * 1000),
        min_run_ms=int(policy.min_run_s * 1000),
    )


def _hosts_by_domain(rules: Rules, level: str | None) -> Counter[tuple[str, str]]:
    """Return the number of hosts of one cohort in each known domain of the level."""
    found: Counter[tuple[str, str]] = Counter()
    for node_id, cohort in rules.cohorts.items():
        domain = "fleet" if level is None else rules.domain(node_id, level)
        if domain:
            found[cohort, domain] += 1
    return found


def _anywhere(_: Rules, __: int, ___: str | None) -> PlacementRule:
    return ANYWHERE


def _spread(rules: Rules, nodes: int, level: str | None) -> PlacementRule:
    """Return an even spread over racks, if known racks have enough hosts."""
    known: Counter[tuple[str, str]] = Counter()
    for (cohort, rack), number in _hosts_by_domain(rules, "rack").items():
        known[cohort, _above(rules, rack, level)] += number
    return PlacementRule(balance="rack") if max(known.values(), default=0) >= nodes else ANYWHERE


def _slices(rules: Rules, nodes: int, level: str | None) -> PlacementRule:
    """Return slices of two hosts in one rack, if racks have enough such pairs for the gang."""
    pairs: Counter[tuple[str, str]] = Counter()
    for (cohort, rack), number in _hosts_by_domain(rules, "rack").items():
        pairs[cohort, _above(rules, rack, level)] += number // 2
    if nodes % 2 or max(pairs.values(), default=0) < nodes // 2:
        return ANYWHERE
    return PlacementRule(slices=(Slice("rack", 2),))


def _above(rules: Rules, rack: str, level: str | None) -> str:
    """Return the rack's own domain of the level."""
    block = next(path[0] for path in rules.paths.values() if path[1] == rack)
    return {None: "fleet", "block": block, "rack": rack}[level]
