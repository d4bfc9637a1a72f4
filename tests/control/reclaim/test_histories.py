"""Chance histories of submissions, cancels, crashes and time, after each step of which I1 and I6 to I9 must hold."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from random import Random
from typing import Final

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import quotas
from muster.db.models import Allocation, AllocationGpu, Attempt, GpuHold, Job, Quota, Reclaim
from muster.domain.ids import JobId, TenantId
from muster.domain.policy.document import Policy
from muster.domain.policy.tiers import ReclaimPolicy, TierPolicy
from muster.domain.principals import Principal
from muster.domain.states import AllocationState, AttemptState, JobState, ReclaimState
from muster.failpoints import FailpointError, arming
from scheduler.quota.tenancy import Quota as Limits
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import DONE, KILLED, LEFT, Stage, make_stage
from tests.fleet_factory import OPERATOR
from tests.scaled import examples

WINDOW_S: Final = 240.0
CAP: Final = 0.5
TIERS: Final = {
    "reserved": TierPolicy(priority=300),
    "on_demand": TierPolicy(priority=200),
    "flex": TierPolicy(priority=150, notice_s=90.0, min_run_s=20.0),
    "spot": TierPolicy(priority=100, notice_s=40.0, min_run_s=30.0, standings=("HEALTHY", "PROBATION")),
}
POLICY: Final = Policy(tiers=TIERS, reclaim=ReclaimPolicy(cap_fraction=CAP, window_s=WINDOW_S))
NUM_STEPS: Final = 80
CRASHES: Final = tuple(
    f"{action}.{point}=raise@1"
    for action in ("reclaim.notify", "reclaim.lapse", "reclaim.withdraw", "placement.place")
    for point in ("before_commit", "after_commit")
)


class History:
    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage, self.rng = stage, Random(seed)  # noqa: S311  # a history that must repeat
        stage.set_policy(POLICY)
        self.tenants: list[Principal] = [stage.fleet.tenant, stage.add_tenant("rival")]
        self.assigned_at: dict[TenantId, list[tuple[datetime, int]]] = {}
        self.smallest_at: dict[str, int] = {}
        with stage.units.begin(OPERATOR, quotas.SET) as unit:
            quotas.set_quota(unit, stage.fleet.tenant_id, "reserved", Limits(ceiling=3), reason="contract")

    def fill(self) -> None:
        """The whole fleet with work that can be taken back."""
        for tier in ("spot", "flex", "spot", "spot"):
            self.stage.submit(tier, by=self.rng.choice(self.tenants), shape={"gpus_per_node": 2})
        self.stage.cycle()
        self.stage.beat_all()
        self.stage.pass_time(30)

    def step(self) -> None:
        moves: list[tuple[Callable[[], object], int]] = [
            (self.submit, 8),
            (self.cycle, 7),
            (self.beat, 6),
            (self.leave, 4),
            (self.end, 2),
            (self.cancel, 1),
            (self.wait, 5),
        ]
        self.rng.choices([move for move, _ in moves], [weight for _, weight in moves])[0]()
        self.stage.reconcile()

    def wait(self) -> None:
        self.beat()
        self.stage.pass_time(self.rng.choice([5, 30, 50]))

    def submit(self) -> None:
        tier = self.rng.choices(list(TIERS), [4, 2, 1, 2])[0]
        self.stage.submit(
            tier, by=self.rng.choice(self.tenants), shape={"nodes": 1, "gpus_per_node": self.rng.randint(1, 2)}
        )

    def cycle(self) -> None:
        self.note()
        if self.rng.random() < 0.3:
            with arming(self.rng.choice(CRASHES)), suppress(FailpointError):
                self.stage.cycle()
        else:
            self.stage.cycle()

    def beat(self) -> None:
        for stop in self.stage.beat_all():
            if stop.reason == "reclaim":
                notices = [one for one in self.stage.reclaims() if one.victim_attempt_id == stop.attempt_id]
                (reclaim,) = [one for one in notices if one.delivered_at is not None]
                left_s = (reclaim.deadline_at - self.stage.clock.now).total_seconds()
                assert stop.kill_after_s == pytest.approx(max(0.0, left_s)), "I8: neither earlier nor later"

    def leave(self) -> None:
        """A victim that was notified leaves by itself, or is killed once its deadline has passed."""
        told = [one for one in self.stage.reclaims() if one.delivered_at and one.state is ReclaimState.NOTIFIED]
        for reclaim in told:
            if reclaim.victim_job_id in self.stage.running:
                is_due = reclaim.deadline_at <= self.stage.clock.now
                self.stage.leave(reclaim.victim_job_id, KILLED if is_due else LEFT)

    def end(self) -> None:
        if self.stage.running:
            self.stage.leave(self.rng.choice(sorted(self.stage.running)), DONE)

    def cancel(self) -> None:
        with self.stage.units.read() as session:
            waiting = session.execute(select(Job.id, Job.tenant_id).where(Job.state == JobState.QUEUED)).all()
        if waiting:
            job_id, tenant_id = self.rng.choice(sorted(waiting))
            owner = next(tenant for tenant in self.tenants if tenant.tenant_id == tenant_id)
            self.stage.cancel(job_id, by=owner)

    def note(self) -> None:
        """What each tenant holds and its smallest attempt, before the scheduler may take any of it."""
        with self.stage.units.read() as session:
            live = select(Allocation).where(Allocation.state == AllocationState.ASSIGNED)
            sizes: dict[TenantId, list[int]] = {}
            for allocation in session.scalars(live):
                gpus = select(AllocationGpu.gpu_uuid).where(AllocationGpu.allocation_id == allocation.id)
                sizes.setdefault(allocation.tenant_id, []).append(len(session.scalars(gpus).all()))
        for tenant_id, found in sizes.items():
            self.assigned_at.setdefault(tenant_id, []).append((self.stage.clock.now, sum(found)))
            self.smallest_at[f"{tenant_id}@{self.stage.clock.now}"] = min(found)

    def check(self) -> None:
        with self.stage.units.read() as session:
            reclaims = session.scalars(select(Reclaim).order_by(Reclaim.notified_at, Reclaim.id)).all()
            attempts = {attempt.id: attempt for attempt in session.scalars(select(Attempt))}
            holders: dict[str, JobId] = dict(
                session.execute(
                    select(AllocationGpu.gpu_uuid, Allocation.job_id)
                    .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
                    .where(AllocationGpu.state == AllocationState.ASSIGNED)
                ).all()
            )
            holds = session.execute(select(GpuHold.gpu_uuid, GpuHold.job_id)).all()
            ceilings = session.scalars(select(Quota)).all()
            states: dict[JobId, JobState] = dict(session.execute(select(Job.id, Job.state)).all())
        for reclaim in reclaims:
            self._check_reclaim(reclaim, attempts[reclaim.victim_attempt_id])
            self._check_cap(reclaim, reclaims)
        holding = {one.beneficiary_job_id for one in reclaims if one.hold_ended_at is None}
        assert {job_id for _, job_id in holds} == holding, "every hold is for a waiting beneficiary, and each has holds"
        victims = {one.victim_job_id for one in reclaims}
        for uuid, job_id in holds:
            assert holders.get(uuid) is None or holders[uuid] in victims, f"{uuid} is held for {job_id}, yet was given"
        for quota in ceilings:
            mine = [job_id for job_id in holders.values() if states[job_id] is JobState.ACTIVE]
            assert quota.ceiling_gpus is not None
            assert len([job for job in mine if self._is_of(job, quota)]) <= quota.ceiling_gpus, "I6"

    def _is_of(self, job_id: JobId, quota: Quota) -> bool:
        job = self.stage.job(job_id)
        return (job.tenant_id, job.tier) == (quota.tenant_id, quota.tier)

    def _check_reclaim(self, reclaim: Reclaim, victim: Attempt) -> None:
        tier, above = TIERS[reclaim.victim_tier], TIERS[reclaim.beneficiary_tier]
        assert tier.notice_s is not None, "I7"
        assert tier.priority < above.priority, "I7"
        assert reclaim.deadline_at == reclaim.notified_at + timedelta(seconds=tier.notice_s), "I8"
        assert victim.running_at is not None, "I9"
        assert reclaim.notified_at >= victim.running_at + timedelta(seconds=tier.min_run_s), "I9"
        if reclaim.state is ReclaimState.FORCED:
            assert victim.ended_at is not None
            assert victim.ended_at >= reclaim.deadline_at, "I8"
        if reclaim.state is ReclaimState.WITHDRAWN:
            assert reclaim.delivered_at is None
            is_told = victim.id in {one.victim_attempt_id for one in self.stage.reclaims() if one.delivered_at}
            assert is_told or victim.stop_reason != "reclaim", "a withdrawn notice stopped no attempt"
        if reclaim.state is not ReclaimState.NOTIFIED and reclaim.state is not ReclaimState.WITHDRAWN:
            assert victim.state is AttemptState.ENDED

    def _check_cap(self, newest: Reclaim, reclaims: Sequence[Reclaim]) -> None:
        """I9, at each notice: all that its tenant lost in the window before it, this one with it."""
        tenant_id, since = newest.victim_tenant_id, newest.notified_at - timedelta(seconds=WINDOW_S)
        until_now = reclaims[: reclaims.index(newest) + 1]
        lost = sum(
            one.num_gpus
            for one in until_now
            if one.victim_tenant_id == tenant_id
            and one.state is not ReclaimState.WITHDRAWN
            and one.state is not ReclaimState.OVERTAKEN
            and (one.settled_at is None or one.settled_at > since)
        )
        held = [sum_ for at, sum_ in self.assigned_at[tenant_id] if since <= at <= newest.notified_at]
        smallest = self.smallest_at[f"{tenant_id}@{newest.notified_at}"]
        assert lost <= max(CAP * max(held), smallest), f"I9: {lost} of a peak of {max(held)}"


@pytest.mark.parametrize("seed", range(examples(6, 2)))
def test_the_contract_holds_whatever_happens(units: UnitOfWorkFactory, clock: SetClock, seed: int) -> None:
    history = History(make_stage(units, clock, num_hosts=3), seed)
    history.fill()
    for _ in range(NUM_STEPS):
        history.step()
        history.check()
    assert history.stage.reclaims(), "a history in which nothing is reclaimed proves nothing"
