"""Worlds in which the planner decides differ from each other, and ask of it nothing that an empty fleet cannot give."""

from random import Random

import pytest

from muster.domain.ids import JobId
from muster.domain.job.spec import NodeLossRule
from muster.domain.lifecycle.model import JobLifecycle
from muster.domain.states import Contact
from scheduler.planner import plan
from simulator.planning.rules import Rules, shaped
from simulator.planning.snapshot import take
from simulator.world.rows import JobRow
from simulator.world.wiring import TRUE_WIRING
from simulator.world.world import World

SEEDS = range(60)


class Planned(World):
    is_planned = True


def rules_of(seed: int) -> Rules:
    return Planned(seed, TRUE_WIRING).store.rules


def test_one_world_of_four_is_planned() -> None:
    num_planned = sum(World(seed, TRUE_WIRING).store.rules.is_planned for seed in range(200))
    assert 30 < num_planned < 70


def test_worlds_differ_in_all_that_a_plan_is_about() -> None:
    drawn = [rules_of(seed) for seed in SEEDS]
    assert {rules.num_schedulers for rules in drawn} == {1, 2}
    assert {bool(rules.windows) for rules in drawn} == {True, False}
    assert {len(set(rules.cohorts.values())) for rules in drawn} == {1, 2}
    assert {rules.policy.tier("on_demand").notice_s is None for rules in drawn} == {True, False}
    assert {bool(rules.failures_per_gpu_hour) for rules in drawn} == {True, False}
    assert any(quota.most is not None for rules in drawn for quota in rules.tenancy.quotas.values())
    assert any(member.parent is not None for rules in drawn for member in rules.tenancy.members.values())


def test_no_rule_takes_back_what_is_reserved() -> None:
    assert all(rules_of(seed).policy.tier("reserved").notice_s is None for seed in SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_job_fits_an_empty_fleet(seed: int) -> None:
    """Else a world that never comes to rest would prove nothing."""
    world = Planned(seed, TRUE_WIRING)
    store = world.store
    store.is_calm = True
    contacts = dict.fromkeys(store.gpus, Contact.LIVE)
    for number in range(10):
        row = JobRow(
            JobId("job"), "key", 1, min(2, world.settings.gpus_per_host), NodeLossRule.WAIT, 1000, 0, 1, "acme", None, 0
        )
        row = shaped(row, store.rules, world.settings, Random(number))  # noqa: S311  # it must repeat
        assert row.min_nodes <= row.nodes <= row.most_nodes
        store.rows[row.job_id], store.submitted_ms[row.job_id] = row, 0
        store.jobs[row.job_id] = JobLifecycle(row.job_id)
        snapshot = take(store, 0, contacts, 0)
        assert snapshot is not None
        asked = snapshot.question
        assert plan(asked.gpus, asked.queue, asked.policy, asked.workload).placements, row
