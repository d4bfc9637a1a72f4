"""The check of a gang's place at the commit: the planner's choice passes, hosts that have moved since do not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.job.spec import JobSpec
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.placement import PlacementPolicy
from scheduler.model import GpuView
from scheduler.planner import plan
from scheduler.solve.placement_rule import LabelRule, PlacementRule, Slice
from scheduler.solve.required_place import HostsThere, RequiredPlace, broken_by, required_place
from tests.scaled import examples
from tests.scheduler.fleets import host, job

LEVELS = ("site", "rack")
TREE = PlacementPolicy.model_validate({"levels": list(LEVELS), "nvlink_level": "rack"}, strict=False)
NEW = LabelRule(required=(("generation", frozenset({"new"})),), forbidden=(("noisy", frozenset({"yes"})),))
PATHS = st.sampled_from([("s0", "r0"), ("s0", "r1"), ("s1", "r0"), ("s1", ""), ("", "r0")])
LABELS = st.sampled_from(
    [{"generation": "new"}] * 4 + [{}, {"generation": "old"}, {"generation": "new", "noisy": "yes"}]
)
RULES = st.sampled_from([LabelRule(), NEW])
Reported = tuple[tuple[str, str], Mapping[str, str]]


def requested(*within: tuple[str, int], labels: LabelRule | None = None) -> RequiredPlace:
    return RequiredPlace(labels or LabelRule(), tuple(Slice(*one) for one in within), LEVELS)


def there(hosts: Sequence[Reported]) -> list[HostsThere]:
    """In rank order."""
    return [HostsThere(path, labels, [rank]) for rank, (path, labels) in enumerate(hosts)]


def spec(**more: object) -> JobSpec:
    shape = {"nodes": 4, "gpus_per_node": 8}
    return JobSpec.model_validate({"name": "j", "program": {"script": "/t.py"}, "shape": shape, **more}, strict=False)


@pytest.mark.parametrize(
    ("more", "within"),
    [
        ({"topology": {"required": "site"}}, [("site", 4)]),
        ({"topology": {"slices": [{"level": "rack", "ranks": 16}]}}, [("rack", 2)]),
        ({"topology": {"required": "site", "slices": [{"level": "rack", "ranks": 16}]}}, [("site", 4), ("rack", 2)]),
        ({"layout": {"tp": 16, "dp": 2}}, [("rack", 2)]),
    ],
)
def test_required_level_and_slices_are_queried_again_those_of_a_layout_too(
    more: dict[str, object], within: list[tuple[str, int]]
) -> None:
    required = required_place(spec(**more), TREE, 4)
    assert required is not None
    assert [(one.level, one.nodes) for one in required.within] == within


def test_a_job_that_may_stand_anywhere_is_queried_nothing_preferences_included() -> None:
    assert required_place(spec(topology={"preferred": "rack"}), TREE, 4) is None
    assert required_place(spec(layout={"tp": 8, "fsdp": 4}), TREE.model_copy(update={"leaf_level": "rack"}), 4) is None


def test_of_an_even_spread_only_that_each_place_is_known_is_queried() -> None:
    """How even it is depends on the rest of the fleet."""
    required = required_place(spec(topology={"balance": "rack"}), TREE, 4)
    assert required is not None
    uneven: list[Reported] = [*[(("s0", "r0"), {})] * 3, (("s1", "r0"), {})]
    assert broken_by(required, there(uneven)) is None
    unknown = [*uneven[:3], (("s1", ""), {})]
    assert broken_by(required, there(unknown)) == "the rack of 1 of its hosts is unknown"


def test_of_labels_only_those_are_read_that_it_goes_by() -> None:
    tree = PlacementPolicy.model_validate({"levels": ["site", "block", "rack"]}, strict=False)
    chosen = spec(topology={"required": "block"}, node_labels={"forbidden": {"noisy": ["yes"]}})
    required = required_place(chosen, tree, 4)
    assert required is not None
    assert required.names == ["block", "noisy", "site"]


def test_a_rack_of_another_site_is_another_rack() -> None:
    hosts = there([(("s0", "r0"), {}), (("s1", "r0"), {})])
    assert broken_by(requested(("rack", 2)), hosts) == "hosts that have to share one rack are in several"
    assert broken_by(requested(("rack", 1)), hosts) is None


def test_an_unknown_place_and_a_level_that_is_no_more_are_reported() -> None:
    hosts = there([(("s0", ""), {}), (("s0", ""), {})])
    assert broken_by(requested(("site", 2)), hosts) is None
    assert broken_by(requested(("rack", 2)), hosts) == "the rack of 1 of its hosts is unknown"
    assert broken_by(requested(("pod", 2)), hosts) == "the fleet's tree has no level pod"


def test_labels_that_leave_it_out_are_counted_by_host() -> None:
    alike = HostsThere(("s0", "r0"), {}, [0, 2])
    other = HostsThere(("s0", "r0"), {"generation": "new"}, [1])
    assert broken_by(requested(labels=NEW), [alike, other]) == "the labels of 2 of its hosts exclude the job"


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(PATHS, LABELS), min_size=1, max_size=4),
    st.sampled_from([1, 2]),
    st.sampled_from([None, "site"]),
    RULES,
)
def test_it_holds_where_each_host_and_each_pair_of_one_domain_does(
    hosts: list[Reported], nodes: int, level: str | None, labels: LabelRule
) -> None:
    """By each pair of hosts, which is slow and obvious."""
    within = [("rack", nodes)] + ([] if level is None else [(level, len(hosts))])
    holds = all(labels.admits(own.items()) for _, own in hosts)
    for name, size in within:
        depth = LEVELS.index(name) + 1
        for first, (path, _) in enumerate(hosts):
            holds = holds and path[depth - 1] != ""
            holds = holds and all(
                path[:depth] == other[:depth]
                for second, (other, _) in enumerate(hosts)
                if first // size == second // size
            )
    assert (broken_by(requested(*within, labels=labels), there(hosts)) is None) is holds


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(PATHS, LABELS), min_size=1, max_size=8),
    st.sampled_from([None, "site", "rack"]),
    st.sampled_from([1, 2]),
    RULES,
    st.integers(1, 2),
    st.sampled_from([None, "rack"]),
)
def test_whatever_the_planner_chooses_passes_where_nothing_has_moved(
    fleet: list[Reported], level: str | None, per_slice: int, labels: LabelRule, num_slices: int, balance: str | None
) -> None:
    """Or the next cycle would choose the same again, without end."""
    gpus: list[GpuView] = []
    for number, (path, own) in enumerate(fleet):
        views = host(f"n{number}", 2, path=path)
        gpus += [replace(view, labels=tuple(sorted(own.items()))) for view in views]
    slices = (Slice("rack", per_slice),) if per_slice > 1 else ()
    rule = PlacementRule(slices=slices, labels=labels, balance=balance)
    wanted = replace(job("j", nodes=per_slice * num_slices, gpus=2, required=level), rule=rule)
    decided = plan(gpus, [wanted], DEFAULT_POLICY, levels=LEVELS)
    where = {f"n{number}": told for number, told in enumerate(fleet)}
    whole = () if level is None else (Slice(level, wanted.nodes),)
    spread = () if balance is None else (Slice(balance, 1),)
    required = RequiredPlace(labels, (*whole, *slices, *spread), LEVELS)
    for placed in decided.placements:
        assert broken_by(required, there([where[node] for node, _ in placed.parts])) is None
