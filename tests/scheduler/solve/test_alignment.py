"""The alignment of a job's ranks, compared with plain loops over ranks, and its text."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.job.alignment_texts import alignment_words
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.placement import PlacementPolicy
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, Parts
from scheduler.solve.alignment import Alignment, Groups, HostsOnRails, alignment_of
from tests.scaled import examples
from tests.scheduler.fleet.test_rails import BY_SLOT
from tests.scheduler.fleets import host
from tests.scheduler.solve.test_layouts import Requests, requests

LEVELS = ("pod", "rack")
WIDE = PlacementPolicy(levels=LEVELS, leaf_level="pod", nvlink_level="rack")


def parts_on(gpus: list[GpuView], width: int) -> Parts:
    by_node: dict[str, list[GpuView]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node_id, []).append(gpu)
    return tuple((views[0].node_id, tuple(view.uuid for view in views[:width])) for views in by_node.values())


def aligned(gpus: list[GpuView], parts: Parts, spec: Requests, policy: Policy = DEFAULT_POLICY) -> Alignment:
    return alignment_of(FleetState(gpus, policy, LEVELS), "on_demand", spec, WIDE, parts)


@settings(max_examples=examples(60))
@given(
    sizes=st.tuples(*[st.sampled_from([1, 2, 4])] * 3, st.sampled_from([2, 4, 8])),
    places=st.lists(st.sampled_from([("p0", "r0"), ("p0", "r1"), ("p1", "r2"), ("", "")]), min_size=64, max_size=64),
)
def test_groups_are_counted_that_have_one_domain_by_the_numbers_of_their_ranks(
    sizes: tuple[int, int, int, int], places: list[tuple[str, str]]
) -> None:
    pp, dp, fsdp, tp = sizes
    nodes, rest = divmod(pp * dp * fsdp * tp, 4)
    if rest or nodes > len(places):
        return
    paths = places[:nodes]
    gpus = [view for number, path in enumerate(paths) for view in host(f"n{number:03}", 4, path=path)]
    found = aligned(gpus, parts_on(gpus, 4), requests(nodes, 4, pp=pp, dp=dp, fsdp=fsdp, tp=tp))
    members: dict[str, dict[tuple[int, ...], set[int]]] = {"tp": {}, "fsdp": {}, "pp": {}}
    for rank, (p, d, f, t) in enumerate(product(range(pp), range(dp), range(fsdp), range(tp))):
        for name, key in (("tp", (p, d, f)), ("fsdp", (p, d)), ("pp", (d, f, t))):
            members[name].setdefault(key, set()).add(rank // 4)
    is_told = {"tp": tp > 4, "fsdp": fsdp > 1 and fsdp * tp > 4, "pp": pp > 1 and nodes > 1}
    levels = {"tp": 2, "fsdp": 1, "pp": 1}
    expected = {
        name: (len(groups), sum(len(domains) == 1 and "" not in next(iter(domains)) for domains in found_in))
        for name, groups in members.items()
        if is_told[name]
        for found_in in [[{paths[number][: levels[name]] for number in hosts} for hosts in groups.values()]]
    }
    assert {one.dimension: (one.num_groups, one.num_together) for one in found.groups} == expected


def test_tensor_parallel_groups_that_were_forced_over_hosts_are_notified_of() -> None:
    gpus = [view for name in ("a", "b") for view in host(name, 4, path=("p", "r"))]
    forced = requests(2, 4, tp=8, allow_tp_across_nodes=True)
    state = FleetState(gpus, DEFAULT_POLICY, LEVELS)
    found = alignment_of(state, "on_demand", forced, PlacementPolicy(levels=LEVELS), parts_on(gpus, 4))
    assert found.groups == (Groups("tp", "node", 1, 0),)


def test_rails_are_notified_of_a_gang_where_they_are_declared() -> None:
    gpus = [view for name in ("a", "b", "c") for view in host(name, 8, path=("p", "r"))]
    spec, low = requests(3, 2, fsdp=6), parts_on(gpus, 2)
    assert aligned(gpus, low, spec, BY_SLOT).rails == HostsOnRails((0, 1), 3)
    other = (*low[:2], (low[2][0], tuple(view.uuid for view in gpus[18:20])))
    assert aligned(gpus, other, spec, BY_SLOT).rails == HostsOnRails((0, 1), 2)
    assert aligned(gpus, low, spec).rails is None
    assert aligned(gpus, low[:1], requests(1, 2, fsdp=2), BY_SLOT).rails is None


def test_it_is_stated_in_words_what_holds_and_what_does_not() -> None:
    groups = [
        {"dimension": one.dimension, "level": one.level, "num_groups": one.num_groups, "num_together": one.num_together}
        for one in (Groups("tp", "rack", 4, 4), Groups("pp", "pod", 8, 6))
    ]
    assert list(alignment_words(groups, {"rails": [0, 1], "num_hosts": 2}, 2)) == [
        "each tensor-parallel group has one rack",
        "6 of 8 pipelines have one pod each, the others span several",
        "local ranks are on rails 0, 1 on each host",
    ]
    (line,) = alignment_words([], {"rails": [4], "num_hosts": 2}, 3)
    assert "on rails 4 on 2 of 3 hosts, and on others elsewhere" in line
    assert list(alignment_words([], None, 3)) == []
