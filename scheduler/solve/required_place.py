"""The demands on a job's place that no commit may break: labels, one domain for the gang, one for each slice. Pure.

The planner chooses by the fleet in its snapshot; hosts may have been relabelled since. Preferences are the planner's
alone. So is how even a spread is: whether three hosts in one rack and one in another are the most even spread depends
on the rest of the fleet. The commit checks again that the place of each host is known at its level.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster.domain.policy.placement import PlacementPolicy
from muster.domain.residency import SITE_LABEL
from scheduler.solve.job_rules import PlaceRequest, rule_of
from scheduler.solve.placement_rule import LabelRule, Slice


@dataclass(frozen=True, slots=True)
class RequiredPlace:
    """The demands. ``within``: for each so many hosts by rank, one domain of a level. ``levels``: widest first."""

    labels: LabelRule
    within: tuple[Slice, ...]
    levels: tuple[str, ...]

    @property
    def names(self) -> Sequence[str]:
        """The labels and levels of a host that are checked: the whole path identifies a domain."""
        depths = [self.levels.index(one.level) + 1 for one in self.within if one.level in self.levels]
        residency = () if self.labels.sites is None else (SITE_LABEL,)
        return sorted({*self.labels.names, *residency, *self.levels[: max(depths, default=0)]})


@dataclass(frozen=True, slots=True)
class HostsThere:
    """Hosts of a gang, by their ``ranks``, of one place and of equal relevant labels.

    ``path``: the names of their domains, one a level, widest first; an empty name is an unknown place.
    """

    path: Sequence[str]
    labels: Mapping[str, str]
    ranks: Sequence[int]


def required_place(
    spec: PlaceRequest, policy: PlacementPolicy, num_hosts: int, sites: frozenset[str] | None = None
) -> RequiredPlace | None:
    """Return the demands of a gang of so many hosts; None: it may be anywhere.

    ``sites``: of its tenant's residency rule.
    """
    rule, level = rule_of(spec, policy, sites), spec.topology.required
    whole = () if level is None else (Slice(level, num_hosts),)
    spread = () if rule.balance is None else (Slice(rule.balance, 1),)
    within = (*whole, *rule.slices, *spread)
    return RequiredPlace(rule.labels, within, tuple(policy.levels)) if rule.labels or within else None


def broken_by(required: RequiredPlace, hosts: Iterable[HostsThere]) -> str | None:
    """Return which demand does not hold on these ``hosts``, which are the whole gang's; None if all hold."""
    there = list(hosts)
    outside = _num_barred(required.labels.of_tenant, there)
    if outside:
        return f"{outside} of its hosts are outside the sites of its tenant's residency rule"
    barred = _num_barred(required.labels.of_job, there)
    if barred:
        return f"the labels of {barred} of its hosts exclude the job"
    return next(
        (broken for one in required.within if (broken := _broken(one, required.levels, there)) is not None), None
    )


def _num_barred(labels: LabelRule, hosts: Sequence[HostsThere]) -> int:
    return sum(len(each.ranks) for each in hosts if not labels.admits(each.labels.items()))


def _broken(one: Slice, levels: Sequence[str], hosts: Sequence[HostsThere]) -> str | None:
    if one.level not in levels:
        return f"the fleet's tree has no level {one.level}"
    depth = levels.index(one.level) + 1
    homes: dict[int, Sequence[str]] = {}
    for each in hosts:
        domain = each.path[:depth]
        if not domain[-1]:
            return f"the {one.level} of {len(each.ranks)} of its hosts is unknown"
        for rank in each.ranks:
            if homes.setdefault(rank // one.nodes, domain) != domain:
                return f"hosts that have to share one {one.level} are in several"
    return None
