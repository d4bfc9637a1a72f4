"""Changes that would let a pending job start at once: each reported change does, and is tried here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from muster.domain.gpu.levels import FLEET_LEVEL
from muster.domain.ids import TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.explain.advice import Change, answer
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, Question, RunningAttempt, WaitingJob, Workload
from scheduler.planner import plan_on
from scheduler.quota.tenancy import Quota, Tenancy
from scheduler.solve.placement_rule import LabelRule, PlacementRule
from tests.scheduler.fleets import NOW_MS, hold, job, of_host, racks, running, standing

WAITER = (TenantId("waiter"), "on_demand")


def changes(question: Question, wanted: WaitingJob, levels: Sequence[str] = ("rack",)) -> list[Change]:
    state = FleetState(question.gpus, question.policy, levels)
    decided = plan_on(state, question.queue, question.policy, question.workload)
    free = state.is_free.copy()
    found = answer(state, question, decided, wanted, 0.0)
    assert (state.is_free == free).all(), "it is asked without a trace"
    return list(found.changes)


def starts(question: Question, wanted: WaitingJob, levels: Sequence[str] = ("rack",)) -> bool:
    queue = [wanted if one.job_id == wanted.job_id else one for one in question.queue]
    state = FleetState(question.gpus, question.policy, levels)
    decided = plan_on(state, queue, question.policy, question.workload)
    return wanted.job_id in {placed.job_id for placed in decided.placements}


def question(
    gpus: list[GpuView], queue: list[WaitingJob], attempts: Sequence[RunningAttempt] = (), **workload: Any
) -> Question:
    held = {uuid for attempt in attempts for uuid in attempt.gpus}
    return Question(DEFAULT_POLICY, hold(gpus, held), queue, Workload(NOW_MS, tuple(attempts), **workload))


def limited(quota: Quota) -> Question:
    return question(racks({"A": [8, 8]}), [job("j", gpus=8)], tenancy=Tenancy(quotas={WAITER: quota}))


@pytest.mark.parametrize(
    ("quota", "advised"),
    [
        (Quota(0, borrowable=0, ceiling=0), {}),
        (Quota(0, borrowable=0, ceiling=8), {"quota.borrowable_gpus": 8}),
        (Quota(0, borrowable=8, ceiling=0), {"quota.ceiling_gpus": 8}),
        (Quota(0, borrowable=None, ceiling=0), {"quota.ceiling_gpus": 8}),
        (Quota(0, borrowable=4, ceiling=4), {}),
    ],
)
def test_a_quota_is_reported_where_it_alone_suffices(quota: Quota, advised: Mapping[str, int]) -> None:
    asked = limited(quota)
    told = {one.field: one.value for one in changes(asked, asked.queue[0]) if one.field.startswith("quota")}
    assert told == advised
    raised = {"quota.ceiling_gpus": replace(quota, ceiling=8), "quota.borrowable_gpus": replace(quota, borrowable=8)}
    assert {field: starts(limited(one), asked.queue[0]) for field, one in raised.items()} == {
        field: field in advised for field in raised
    }


def behind_a_gang(**workload: Any) -> tuple[Question, WaitingJob]:
    """A host is idle and held for a gang that waits for the other one; ``j`` would outlast that."""
    busy = running("a", of_host("Ah1"), tier="on_demand", ends_minutes=10)
    gang = replace(job("gang", nodes=2, gpus=8, required="rack"), expected_s=4000.0)
    wanted = replace(job("j", gpus=8, at=NOW_MS), expected_s=5000.0)
    return question(racks({"A": [8, 8]}), [gang, wanted], [busy], **workload), wanted


def test_what_is_on_hold_for_itself_by_a_reclaim_that_stands_counts_as_its_own() -> None:
    wanted = job("j", nodes=2, gpus=8, tier="reserved")
    victim = running("v", of_host("Ah0"))
    promised = standing("v", "j", of_host("Ah0") + of_host("Ah1"))
    asked = question(racks({"A": [8, 8]}), [wanted], [victim], reclaims=(promised,))
    assert changes(asked, wanted) == [Change("shape.nodes", 1), Change("fleet.nodes", 1)]


def test_what_is_on_hold_for_lower_tiers_is_free_to_what_would_go_before_them() -> None:
    asked, wanted = behind_a_gang()
    assert Change("tier", "reserved") in changes(asked, wanted)
    assert starts(asked, replace(wanted, tier="reserved"))


def test_what_is_on_hold_for_equals_or_was_guaranteed_before_is_no_others_to_take() -> None:
    asked, wanted = behind_a_gang()
    equal = replace(asked, queue=[replace(asked.queue[0], tier="reserved"), wanted])
    assert Change("tier", "reserved") not in changes(equal, wanted)
    assert not starts(equal, replace(wanted, tier="reserved"))
    promised, wanted = behind_a_gang(reclaims=(standing("a", "gang", of_host("Ah0") + of_host("Ah1")),))
    assert Change("tier", "reserved") not in changes(promised, wanted)
    assert not starts(promised, replace(wanted, tier="reserved"))


PODS = {"A1": "A", "A2": "A", "B1": "B"}


@pytest.mark.parametrize(("nodes", "level"), [(3, "pod"), (5, FLEET_LEVEL), (7, None)])
def test_the_narrowest_wider_level_that_admits_it_is_reported(nodes: int, level: str | None) -> None:
    wanted = job("j", nodes=nodes, gpus=8, required="rack")
    asked = question(racks({"A1": [8, 8], "A2": [8, 8], "B1": [8, 8]}, pods=PODS), [wanted])
    told = [one.value for one in changes(asked, wanted, ("pod", "rack")) if one.field == "topology.required"]
    assert told == ([] if level is None else [level])
    if level is not None:
        relaxed = replace(wanted, required_level=None if level == FLEET_LEVEL else level)
        assert starts(asked, relaxed, ("pod", "rack"))


def test_a_label_that_alone_is_in_the_way_is_reported() -> None:
    gpus = [replace(gpu, labels=(("disk", "small"), ("kind", "training"))) for gpu in racks({"A": [8, 8]})]

    def reported(labels: LabelRule) -> list[str | float]:
        wanted = replace(job("j", gpus=8), rule=PlacementRule(labels=labels))
        found = [one.value for one in changes(question(gpus, [wanted]), wanted) if one.field == "node_labels.without"]
        for name in found:
            freed = replace(wanted, rule=PlacementRule(labels=labels.without(str(name))))
            assert starts(question(gpus, [freed]), freed)
        return found

    training, large = ("kind", frozenset({"training"})), ("disk", frozenset({"large"}))
    assert reported(LabelRule(required=(large, training))) == ["disk"]
    assert reported(LabelRule(required=(large,), forbidden=(training,))) == []
    assert reported(LabelRule(forbidden=(training,))) == ["kind"]
    assert reported(
        LabelRule(required=(("disk", frozenset({"small"})),), forbidden=(("disk", frozenset({"small"})),))
    ) == ["disk"]


@pytest.mark.parametrize(("gpus_per_node", "advised"), [(8, True), (9, False)])
def test_more_hosts_are_no_advice_where_none_is_as_large(gpus_per_node: int, *, advised: bool) -> None:
    asked = question(racks({"A": [8, 8]}), [job("j", gpus=gpus_per_node, nodes=3)])
    told = {one.field for one in changes(asked, asked.queue[0])}
    assert ("fleet.nodes" in told) is advised
