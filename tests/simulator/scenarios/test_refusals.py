"""An invalid scenario is refused at its field, with what is accepted, and without a wrong statement."""

from collections.abc import Mapping
from typing import Any

import pytest

from muster.domain.errors import ValidationFailedError
from muster.domain.validation import validated
from simulator.scenarios.document import Scenario

TIERS = "on_demand, reserved, spot"
TOPOLOGY: dict[str, Any] = {"nodes": [{"names": "a[0-1]"}]}
SUBMITTED: dict[str, Any] = {"at_s": 9, "submit": {"name": "late"}}


def text(change: Mapping[str, Any]) -> dict[str, str]:
    """By pointer."""
    with pytest.raises(ValidationFailedError) as refused:
        validated(Scenario, {"topology": TOPOLOGY, **change})
    return {fault.pointer: fault.detail for fault in refused.value.faults}


def nodes(**fields: Any) -> dict[str, Any]:
    return {"topology": {"nodes": [{"names": "a0", **fields}]}}


def queued(**fields: Any) -> dict[str, Any]:
    return {"jobs": {"queued": [{"name": "a", **fields}]}}


def running(**fields: Any) -> dict[str, Any]:
    return {"jobs": {"running": [{"name": "a", "nodes": ["a0"], **fields}]}}


def request(**fields: Any) -> dict[str, Any]:
    return {"requests": [{"at_s": 1, **fields}]}


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        (nodes(path=["A", "B"]), "/topology", "the path of a0 has 2 names"),
        ({"topology": {"nodes": [{"names": "a0"}, {"names": "a[0-1]"}]}}, "/topology/nodes/1/names", "twice: a0"),
        ({"topology": {"nodes": [{"names": "a[0-999999999]"}]}}, "/topology", "more than 100,000 nodes"),
        (nodes(names="a[3-0]"), "/topology/nodes/0/names", "the lower number comes first, as in a[0-3]"),
        (nodes(names="a[0-3,5]"), "/topology/nodes/0/names", "is no range: a range of nodes is written a[0-3]"),
        (nodes(names="a[0-1]b[0-1]"), "/topology/nodes/0/names", "is no range"),
        (nodes(names=""), "/topology/nodes/0/names", "at least 1 character"),
        (nodes(attributes={"rails": "0,2"}), "/topology/nodes/0/attributes", "numbered from 0 without a gap"),
        (nodes(attributes={"rails": "0,1"}), "/topology/nodes/0", "rails of 2 GPUs, and gpus of a0 is 8: give one for"),
        (nodes(gpus=1, attributes={"rails": "0,1"}), "/topology/nodes/0", "rails of 2 GPUs, and gpus of a0 is 1"),
        (nodes(domain="A", path=["A"]), "/topology/nodes/0", "has both path and domain: give one of them"),
        (nodes(nmaes="b"), "/topology/nodes/0/nmaes", "did you mean names?"),
        (nodes(zzz=1), "/topology/nodes/0/zzz", "there are names, path, gpus, model, attributes, domain"),
        ({"gpus": [{"node": "zz"}]}, "/gpus/0/node", "no node of the topology is named zz"),
        ({"gpus": [{"node": "a0", "slots": [0, 8]}]}, "/gpus/0/slots/1", "8 is no GPU of a0, which has 8: 0 to 7"),
        ({"gpus": [{"node": "a0", "slots": [-1]}]}, "/gpus/0/slots/0", "must be at least 0"),
        ({"gpus": [{"node": "a0", "slots": []}]}, "/gpus/0/slots", "must have at least 1 item"),
        (request(change={"node": "a0", "slots": [9]}), "/requests/0/change/slots/0", "9 is no GPU of a0"),
        ({"faults": [{"at_s": 1, "change": {"node": "b"}}]}, "/faults/0/change/node", "no node of the topology"),
        ({"maintenance": [{"domain": "Z", "starts_s": 1}]}, "/maintenance/0/domain", "has the domain Z"),
        (
            {
                "topology": {
                    "levels": ["block", "rack"],
                    "nodes": [{"names": "a0", "domain": "b1/A"}, {"names": "a1", "domain": "b2/A"}],
                },
                "maintenance": [{"domain": "b1/A", "starts_s": 1}, {"domain": "A", "starts_s": 1}],
            },
            "/maintenance/1/domain",
            "A is a name of several domains: use one of the paths b1/A, b2/A",
        ),
        (running(nodes=["a0", "a0"]), "/jobs/running/0", "nodes names a0 twice"),
        (running(min_nodes=2), "/jobs/running/0", "nodes must be from min_nodes to max_nodes; they are 1"),
        ({"maintenance": [{"nodes": ["b"], "starts_s": 1}]}, "/maintenance/0/nodes/0", "is named b"),
        (running(nodes=["a0", "b"]), "/jobs/running/0/nodes/1", "is named b"),
    ],
)  # fmt: skip
def test_nodes_and_their_gpus(change: dict[str, Any], pointer: str, words: str) -> None:
    found = text(change)
    assert list(found) == [pointer]
    assert words in found[pointer]


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        (queued(tier="gold"), "/jobs/queued/0/tier", f"gold is not among the tiers of the policy: {TIERS}"),
        (running(tier="gold"), "/jobs/running/0/tier", TIERS),
        (request(submit={"name": "a", "tier": "gold"}), "/requests/0/submit/tier", TIERS),
        (request(plan={"name": "a", "tier": "gold"}), "/requests/0/plan/tier", TIERS),
        ({"quotas": [{"tenant": "t", "tier": "gold"}]}, "/quotas/0/tier", TIERS),
        ({"tenants": [{"name": "t", "used_gpus": {"gold": 3}}]}, "/tenants/0/used_gpus/gold", TIERS),
        ({"tenants": [{"name": "t", "quota": {"gold": {}}}]}, "/tenants/0/quota/gold", TIERS),
        (
            {"quotas": [{"tenant": "t", "guaranteed_gpus": 9, "ceiling_gpus": 8}]},
            "/quotas/0",
            "guaranteed_gpus is 9, and ceiling_gpus 8: guarantee at most the ceiling",
        ),
        (
            {"tenants": [{"name": "t", "quota": {"spot": {"guaranteed_gpus": 1, "ceiling_gpus": 0}}}]},
            "/tenants/0/quota/spot",
            "guarantee at most the ceiling",
        ),
        (
            {"tenants": [{"name": "t", "quota": {"spot": {}}}], "quotas": [{"tenant": "t", "tier": "spot"}]},
            "/tenants/0/quota/spot",
            "the quota of t in spot is given twice",
        ),
        (
            {"tenants": [{"name": "t"}], **queued(tenant="taem")},
            "/jobs/queued/0/tenant",
            "taem is not among the tenants: t; name it there too",
        ),
        ({"tenants": [{"name": "t"}], "quotas": [{"tenant": "u"}]}, "/quotas/0/tenant", "not among the tenants: t"),
        ({"tenants": [{"name": "t"}, {"name": "t"}]}, "/tenants/1/name", "t is named twice"),
        ({"tenants": [{"name": "t", "parent": "u"}]}, "/tenants/0/parent", "u, which is not among the tenants"),
        ({"tenants": [{"name": "t", "parent": "t"}]}, "/tenants/0/parent", "t cannot be under t"),
    ],
)
def test_tiers_and_tenants(change: dict[str, Any], pointer: str, words: str) -> None:
    found = text(change)
    assert list(found) == [pointer]
    assert words in found[pointer]


def test_a_tier_of_the_policy_that_is_stated_is_one() -> None:
    own = {"policy": {"tiers": {"gold": {"priority": 7}}}, **queued(tier="gold")}
    assert validated(Scenario, {"topology": TOPOLOGY, **own}).rules.tiers["gold"].priority == 7


def test_without_tenants_any_is_one_and_what_names_none_has_no_place_to_miss() -> None:
    validated(Scenario, {"topology": TOPOLOGY, "quotas": [{"tenant": "u"}], **queued(tenant="v")})
    validated(Scenario, {"topology": TOPOLOGY, "tenants": [{"name": "t"}], **queued()})


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        (queued(name=""), "/jobs/queued/0/name", "at least 1 character"),
        (queued(name="a\x1b[2J"), "/jobs/queued/0/name", "must be printable characters in one line; it has U+001B"),
        (queued(tenant="a\nb"), "/jobs/queued/0/tenant", "it has U+000A"),
        ({"about": "a\x1b"}, "/about", "must be printable characters"),
        (queued(nodes=2, max_nodes=1), "/jobs/queued/0", "nodes must be from min_nodes"),
        (queued(wall_time_s=1e300), "/jobs/queued/0/wall_time_s", "must be at most 31,536,000"),
        (queued(wall_time_s="60"), "/jobs/queued/0/wall_time_s", "must be a number, without a unit or quotes"),
        ({"until_s": True}, "/until_s", "must be a number"),
        (queued(total_gpus=12), "/jobs/queued/0", "12 is no whole number of hosts with 8 GPUs each"),
        (queued(total_gpus=0), "/jobs/queued/0", "total_gpus must be a whole number, 1 or more"),
        (queued(total_gpus=8, nodes=1), "/jobs/queued/0", "has both nodes and total_gpus: give one of them"),
        (queued(total_gpus=16, gpus_per_node="8"), "/jobs/queued/0/gpus_per_node", "must be a whole number"),
        (queued(required="row"), "/jobs/queued/0/required", "the fleet's tree has no level row, only: rack"),
        (queued(zzz=1), "/jobs/queued/0/zzz", "there are name, tenant, tier, gpus_per_node, min_nodes"),
        (queued(started_s=0), "/jobs/queued/0/started_s", "there is no such key"),
        (queued(queued_s=1), "/jobs/queued/0/queued_s", "must be at most 0: a is pending at second 0"),
        (running(started_s=1), "/jobs/running/0/started_s", "must be at most 0"),
        (running(last_checkpoint_s=1), "/jobs/running/0/last_checkpoint_s", "must be at most 0"),
        (request(submit={"name": "a", "queued_s": 2}), "/requests/0/submit/queued_s", "at most at_s, which is 1"),
        (request(plan={"name": "a", "queued_s": 2}), "/requests/0/plan/queued_s", "at most at_s, which is 1"),
        ({"jobs": {"queued": [{"name": "a"}, {"name": "a"}]}}, "/jobs/queued/1/name", "two jobs are named a"),
        (request(cancel="a", end="b"), "/requests/0", "one of submit, plan, cancel, end, change, restart and crash"),
        (request(cancel="b"), "/requests/0/cancel", "cancel names b, and no job"),
        ({"requests": [{"at_s": 8, "end": "late"}, SUBMITTED]}, "/requests/0/end", "submitted only after that, at 9 s"),
        ({"requests": [{"at_s": 9, "end": "late"}, SUBMITTED]}, "/requests/0/end", "only after that, at 9 s"),
        ({"requests": [SUBMITTED, {"at_s": 8, "cancel": "late"}]}, "/requests/1/cancel", "only after that, at 9 s"),
        ({"polcy": {}}, "/polcy", "there is no such key; did you mean policy?"),
        ({"zzz": {}}, "/zzz", "there are about, topology, gpus, tenants, quotas, jobs, failures_per_gpu_hour"),
    ],
)
def test_jobs_and_their_times(change: dict[str, Any], pointer: str, words: str) -> None:
    found = text(change)
    assert list(found) == [pointer]
    assert words in found[pointer]


def test_what_is_submitted_in_the_same_second_and_stands_before_may_end() -> None:
    validated(Scenario, {"topology": TOPOLOGY, "requests": [SUBMITTED, {"at_s": 9, "end": "late"}]})


def test_a_checkpoint_may_be_of_the_attempt_before() -> None:
    validated(Scenario, {"topology": TOPOLOGY, **running(started_s=-10, last_checkpoint_s=-60)})


@pytest.mark.parametrize(
    ("policy", "pointer", "words"),
    [
        ({"tires": {}}, "/policy/tires", "did you mean tiers?"),
        ({"reclaim": {"cap_fraction": 2}}, "/policy/reclaim/cap_fraction", "must be a fraction from 0 to 1"),
        ({"tiers": 3}, "/policy/tiers", "must be a mapping"),
        ({"placement": {"levels": ["a", "a"]}}, "/policy/placement", "levels must be named once each"),
    ],
)
def test_what_is_wrong_with_the_policy_stands_below_policy(policy: dict[str, Any], pointer: str, words: str) -> None:
    found = text({"policy": policy})
    assert words in found[pointer]
    assert all(each.startswith("/policy") for each in found)


def test_levels_that_no_policy_takes_are_at_fault_in_the_topology() -> None:
    assert list(text({"topology": {"levels": ["a", "a"], "nodes": [{"names": "a0"}]}})) == ["/topology/levels"]


def test_all_that_is_wrong_is_stated_at_once_and_nothing_next_to_it() -> None:
    change = {"gpus": [{"node": "a0", "slots": [8]}], **queued(tier="gold", queued_s=4)}
    assert list(text(change)) == ["/gpus/0/slots/0", "/jobs/queued/0/tier", "/jobs/queued/0/queued_s"]
    assert text({**nodes(gpus="16"), "gpus": [{"node": "a0", "slots": [12]}]}) == {
        "/topology/nodes/0/gpus": "must be a whole number"
    }
    assert text(nodes(gpus="4", attributes={"rails": "0,1,2,3"})) == {
        "/topology/nodes/0/gpus": "must be a whole number"
    }
