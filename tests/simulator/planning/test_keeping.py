"""GPUs of an interrupted attempt stay its job's: the world computes them apart from the server's holds."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from muster.domain.exit.causes import KEEPS_ITS_GPUS
from muster.domain.ids import AttemptId, Fence, GpuUuid, JobId, NodeId
from muster.domain.job.spec import NodeLossRule
from muster.domain.lifecycle.model import AttemptLifecycle, HostPart, Verdict
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Cause
from scheduler.model import Lapse, Placement, Plan, Question, ResumeHold, WaitingJob, Workload
from simulator.planning.keeping import Kept, fault_of_kept, kept_of
from simulator.world.truth import ViolationError

JOB, OTHER = JobId("job"), JobId("other")
A, B = NodeId("a"), NodeId("b")
PARTS: Mapping[NodeId, tuple[GpuUuid, ...]] = {A: (GpuUuid("a0"),), B: (GpuUuid("b0"),)}
GOOD, BAD = GpuUuid("a0"), GpuUuid("b0")
WAIT_MS = int(DEFAULT_POLICY.recovery.wait_for_replacement_s * 1000)
WAITING = WaitingJob(JOB, 0, "on_demand", 0, 2, 1, interrupted_ms=1000, required_level="rack")


def ended(cause: Cause) -> AttemptLifecycle:
    """On two hosts, of which ``B`` was at fault."""
    return AttemptLifecycle(
        attempt_id=AttemptId("att"),
        job_id=JOB,
        fence=Fence(1),
        hosts=(HostPart(A, woken_ms=0), HostPart(B, woken_ms=0, is_at_fault=True)),
        placed_ms=0,
        on_node_loss=NodeLossRule.WAIT,
        ending=Verdict(cause, "by a report"),
    )


def question(job: WaitingJob, now_ms: int) -> Question:
    return Question(DEFAULT_POLICY, [], [job], Workload(now_ms, holds=(ResumeHold(JOB, (GOOD,)),)))


@pytest.mark.parametrize("cause", Cause)
def test_what_is_kept_is_what_the_services_keep_but_for_hosts_at_fault(cause: Cause) -> None:
    assert list(kept_of(ended(cause), PARTS)) == ([GOOD] if cause in KEEPS_ITS_GPUS else [])


def test_no_other_is_placed_on_it_until_it_is_let_go() -> None:
    kept = Kept()
    kept.note(ended(Cause.NODE_LOST), PARTS, {})
    kept.require_own(JOB, [GOOD, BAD])
    kept.require_own(OTHER, [BAD])
    with pytest.raises(ViolationError, match="kept since an interruption, and other takes them"):
        kept.require_own(OTHER, [GOOD])
    kept.forget(JOB)
    kept.require_own(OTHER, [GOOD])


def test_what_is_guaranteed_to_another_stays_so() -> None:
    kept = Kept()
    kept.note(ended(Cause.EVACUATED), PARTS, {GOOD: OTHER})
    kept.require_own(OTHER, [GOOD])


def test_a_plan_uses_what_is_on_hold_or_gives_it_back_or_waits_as_long_as_the_policy_states() -> None:
    in_time, too_late = 1000 + WAIT_MS - 1, 1000 + WAIT_MS
    assert fault_of_kept(question(WAITING, in_time), Plan()) is None
    assert fault_of_kept(question(WAITING, too_late), Plan())
    assert fault_of_kept(question(WAITING, too_late), Plan(lapses=(Lapse(JOB, "why"),))) is None
    assert fault_of_kept(question(WAITING, too_late), Plan(placements=(Placement(JOB, 0, ()),))) is None


@pytest.mark.parametrize("changes", [{"required_level": None}, {"interrupted_ms": None}, {"min_nodes": 1}])
def test_what_has_nothing_to_wait_for_gives_it_back_at_once(changes: dict[str, object]) -> None:
    job = replace(WAITING, **changes)  # type: ignore[arg-type]  # each case names its field
    assert fault_of_kept(question(job, 1001), Plan())


def test_of_what_is_not_requested_about_nothing_is_stated() -> None:
    assert fault_of_kept(replace(question(WAITING, 1 << 40), queue=[]), Plan()) is None
