"""Which reclaims are withdrawn: the one rule, in the planner and by itself."""

from dataclasses import replace

import pytest

from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import ReclaimState
from scheduler.model import Lapse, Plan, StandingReclaim, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.reclaim.withdrawal import may_be_withdrawn
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, job, of_host, racks, running, standing

GONE = "the job that it was for is no longer pending"


@pytest.mark.parametrize("state", ReclaimState)
@pytest.mark.parametrize("is_delivered", [True, False])
def test_only_a_notice_that_stands_and_that_no_host_has_received_is_withdrawn(
    state: ReclaimState,
    is_delivered: bool,  # noqa: FBT001  # a parameter
) -> None:
    is_expected = (state, is_delivered) == (ReclaimState.NOTIFIED, False)
    assert may_be_withdrawn(state, is_delivered=is_delivered) is is_expected


def decide(reclaim: StandingReclaim, queue: list[WaitingJob]) -> Plan:
    """``reclaim`` is of ``v``, on the one host, which leaves by its deadline once the notice is delivered."""
    victim = running("v", of_host("r0h0"), ends_minutes=600)
    if reclaim.is_delivered:
        victim = replace(victim, ends_ms=reclaim.deadline_ms, is_stopping=True)
    gpus = hold(racks({"r0": [8]}), victim.gpus)
    return plan(gpus, queue, DEFAULT_POLICY, Workload(NOW_MS, (victim,), (reclaim,)))


@pytest.mark.parametrize("is_delivered", [True, False])
def test_a_victim_that_was_notified_leaves_though_its_beneficiary_is_gone(is_delivered: bool) -> None:  # noqa: FBT001  # a parameter
    """The hold ends in both cases. Another job counts on the end of the notice only if the victim leaves."""
    reclaim = replace(standing("v", "gone", of_host("r0h0")), is_delivered=is_delivered)
    decided = decide(reclaim, [job("next", gpus=8, tier="on_demand")])
    assert decided.lapses == (Lapse(reclaim.beneficiary, GONE),)
    assert [one.victim for one in decided.withdrawals] == ([] if is_delivered else ["v"])
    (place,) = decided.holds
    assert place.until_ms == (reclaim.deadline_ms if is_delivered else NOW_MS + 600 * MINUTE_MS)
