"""The transactions of reclaim and of growth: notices, their withdrawal, the end of a hold, a larger place on hold.

Decisions are made on a snapshot and committed a while later on the state by then; a notice's time counts from its
commit.
"""

from collections.abc import Collection, Sequence
from typing import Final

from muster.domain.exit.causes import GOES_ON_THERE
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.lifecycle.model import JobLifecycle
from muster.domain.state_sets import JOBS_THAT_WAIT_FOR_GPUS, PARTS_THAT_MAY_RUN
from muster.domain.states import AttemptState, JobState, StopReason
from scheduler.model import Growth, Reclaim
from scheduler.reclaim.caps import allowances
from scheduler.reclaim.lending import Lending
from simulator.planning.snapshot import workload_of
from simulator.world.kernel import Kernel
from simulator.world.places import fault_of_reclaimed
from simulator.world.placing import Placer
from simulator.world.rows import JobRow, Notice
from simulator.world.server import Server
from simulator.world.truth import require
from simulator.world.wiring import Wiring

_NOTIFY: Final = "reclaim.notify"


class Reclaims:
    """The transactions of one world. ``num_lost``: as in the placer."""

    name = "reclaims"

    def __init__(self, kernel: Kernel, wiring: Wiring, server: Server, placer: Placer) -> None:
        self._kernel, self._wiring, self._server, self._placer = kernel, wiring, server, placer
        self._store = server.store
        self.num_lost = 0

    def may_be_taken(self, attempt_id: AttemptId) -> bool:
        life = self._store.attempts[attempt_id]
        row = self._store.rows[life.job_id]
        is_free = life.stop is None and life.ending is None and not self._store.notices.is_open(attempt_id)
        has_run = self._store.ran_ms(life, self._kernel.now_ms) >= row.min_run_ms
        return is_free and row.notice_ms is not None and has_run

    def notify(self, job_id: JobId, seen: AttemptId, selected_ms: int) -> None:
        """Commit the notice, its deadline and the stop in one transaction, without a beneficiary."""
        attempt_id = self._store.live_of_job.get(job_id)
        if attempt_id is None or self._store.notices.is_open(attempt_id):
            return
        if self._wiring.rechecks_victims and (attempt_id != seen or not self.may_be_taken(attempt_id)):
            return
        self._server.failpoint(f"{_NOTIFY}.before_commit")
        now_ms = self._kernel.now_ms
        deadline_ms = self._deadline_ms(job_id, selected_ms)
        self._store.put_notice(self._store.attempts[attempt_id], Notice(now_ms, deadline_ms))
        rings = self._server.stop_in(attempt_id, StopReason.RECLAIM, deadline_ms - now_ms)
        self._server.failpoint(f"{_NOTIFY}.after_commit")
        self._server.send_wakeups(rings)

    def _deadline_ms(self, job_id: JobId, selected_ms: int) -> int:
        notice_ms = self._store.rows[job_id].notice_ms or 0
        return notice_ms + (self._kernel.now_ms if self._wiring.counts_notice_from_commit else selected_ms)

    def notify_all(self, seen: JobLifecycle, chosen: Sequence[Reclaim], selected_ms: int) -> None:
        """Notify all victims of one beneficiary, or none: only together they free its place, which is held for it."""
        store, beneficiary = self._store, seen.job_id
        held = list(dict.fromkeys(gpu for wanted in chosen for gpu in wanted.hold))
        row = store.rows[beneficiary]
        if self._is_lost(seen, chosen, held):
            self.num_lost += 1
            return
        self._server.failpoint(f"{_NOTIFY}.before_commit")
        is_for_somebody = store.jobs[beneficiary].state is JobState.QUEUED
        require(is_for_somebody, "reclaim", f"{beneficiary} is no longer pending, and others get notices for it")
        leaving = self._goes_on_there(held)
        require(not leaving, "kept", f"{leaving} stay their jobs' as those leave, and are held for {beneficiary}")
        fault = fault_of_reclaimed(store.rules, row, held, chosen, store.gpus)
        require(fault is None, "reclaim", f"{fault}")
        now_ms = self._kernel.now_ms
        for wanted in chosen:
            life = store.attempts[wanted.victim]
            deadline_ms = self._deadline_ms(life.job_id, selected_ms)
            notice = Notice(now_ms, deadline_ms, beneficiary, wanted.gpus, wanted.keeps, is_delivered=False)
            store.put_notice(life, notice)
        promised = {gpu: store.hold_of[gpu] for gpu in held if store.hold_of.get(gpu, beneficiary) != beneficiary}
        require(not promised, "hold", f"{promised} are held, and reclaimed for {beneficiary}")
        store.hold_alone(beneficiary, held)
        rings = [ring for wanted in chosen for ring in self._deliver(wanted.victim)]
        self._server.failpoint(f"{_NOTIFY}.after_commit")
        for node_id in rings:
            self._server.wake(node_id)

    def _deliver(self, victim: AttemptId) -> list[NodeId]:
        """Return the hosts whose heartbeats bring the order; if none runs anything of the victim, stop it now."""
        running = [part.node_id for part in self._store.attempts[victim].hosts if part.state in PARTS_THAT_MAY_RUN]
        if not running:
            self._server.notify_victim(victim)
        return running

    def _is_lost(self, seen: JobLifecycle, chosen: Sequence[Reclaim], assigned: Sequence[GpuUuid]) -> bool:
        store, row = self._store, self._store.rows[seen.job_id]
        live = store.live_of_job.values()
        if any(wanted.victim not in live or store.notices.is_open(wanted.victim) for wanted in chosen):
            return True  # one notice an attempt, as the index enforces
        if self._wiring.rechecks_beneficiary and self._waits_no_more(seen):
            return True
        if self._wiring.rechecks_victims and any(not self._is_victim(wanted, row) for wanted in chosen):
            return True
        if self._wiring.rechecks_holds and any(store.hold_of.get(gpu, seen.job_id) != seen.job_id for gpu in assigned):
            return True
        if self._wiring.rechecks_staying and self._stays(assigned, {wanted.victim for wanted in chosen}):
            return True
        node_of = {gpu: node_id for node_id, part in store.gpus.items() for gpu in part}
        if any(self._placer.not_admitted(node_of[gpu], gpu, row) for gpu in assigned):
            return True
        if self._wiring.rechecks_ceiling and self._placer.is_over_quota(row, len(assigned), alongside=seen.job_id):
            return True
        return self._wiring.rechecks_caps and (
            self._is_past_cap(chosen) or self._is_not_lent(row, chosen, len(assigned))
        )

    def _stays(self, gpus: Sequence[GpuUuid], victims: Collection[AttemptId]) -> bool:
        """Return whether attempts other than victims use some of them without a known end, or jobs continue there."""
        store = self._store
        others = {holder for gpu in gpus if (holder := store.holders.get(gpu)) is not None and holder not in victims}
        lives = [store.attempts[holder] for holder in others]
        has_no_end = any(one.stop is None and one.wall_deadline_ms is None for one in lives)
        return has_no_end or bool(self._goes_on_there(gpus))

    def _goes_on_there(self, gpus: Sequence[GpuUuid]) -> dict[GpuUuid, AttemptId]:
        """Return the GPUs of stopping attempts on which their jobs continue."""
        held = {gpu: holder for gpu in gpus if (holder := self._store.holders.get(gpu)) is not None}
        stops = {holder: self._store.attempts[holder].stop for holder in held.values()}
        going_on = {holder for holder, stop in stops.items() if stop is not None and stop.reason in GOES_ON_THERE}
        return {gpu: holder for gpu, holder in held.items() if holder in going_on}

    def _waits_no_more(self, seen: JobLifecycle) -> bool:
        job = self._store.jobs[seen.job_id]
        return job.state is not JobState.QUEUED or seen.job_id in self._store.notices.holds()

    def _is_victim(self, wanted: Reclaim, beneficiary: JobRow) -> bool:
        """Return whether I7 and the minimum run time of I9 hold, and the attempt still has the GPUs of the snapshot."""
        life = self._store.attempts[wanted.victim]
        row = self._store.rows[life.job_id]
        tiers = self._store.rules.policy.tiers
        is_below = tiers[row.tier].priority < tiers[beneficiary.tier].priority or row.tier == beneficiary.tier
        own = {gpu for part in self._store.allocated[wanted.victim].values() for gpu in part}
        is_as_seen = self._store.live_of_job.get(life.job_id) == wanted.victim and own == {*wanted.gpus, *wanted.keeps}
        is_a_size = not wanted.keeps or len(wanted.keeps) // row.gpus_per_node >= row.min_nodes
        return self.may_be_taken(wanted.victim) and is_below and is_as_seen and is_a_size

    def _is_past_cap(self, chosen: Sequence[Reclaim]) -> bool:
        lost: dict[str, int] = {}
        for wanted in chosen:
            tenant = self._store.rows[self._store.attempts[wanted.victim].job_id].tenant
            lost[tenant] = lost.get(tenant, 0) + len(wanted.gpus)
        now = workload_of(self._store, self._kernel.now_ms)
        notified = {reclaim.victim for reclaim in now.reclaims}
        left = allowances(now, self._store.rules.policy, notified)
        return any(number > left.get(TenantId(tenant), 0) for tenant, number in lost.items())

    def _is_not_lent(self, row: JobRow, chosen: Sequence[Reclaim], num_gpus: int) -> bool:
        """Return whether a victim of the same tier does not use lent GPUs. Within a tier only these are reclaimed."""
        of_attempt = self._store.attempts
        given = {
            wanted.victim: len(wanted.gpus)
            for wanted in chosen
            if self._store.rows[of_attempt[wanted.victim].job_id].tier == row.tier
        }
        if not given:
            return False
        now = workload_of(self._store, self._kernel.now_ms)
        running = sorted(now.running, key=lambda attempt: attempt.attempt_id)
        lending = Lending(now.tenancy, self._store.rules.policy, running)
        keeps = {reclaim.victim: len(reclaim.keeps) for reclaim in now.reclaims}
        for attempt in running:
            if attempt.attempt_id in keeps and not attempt.is_stopping:
                lending.leaves(attempt, keeps[attempt.attempt_id])
        for job_id in (one for one in self._store.hold_of.values() if one != row.job_id):
            holder = self._store.rows[job_id]
            lending.comes(TenantId(holder.tenant), holder.tier, 1)
        claim = lending.claim(TenantId(row.tenant), row.tier, num_gpus)
        taken = {index: given[one.attempt_id] for index, one in enumerate(running) if one.attempt_id in given}
        if claim is None or not all(claim.reaches(running[index]) for index in taken):
            return True
        return not claim.may_lose(list(taken), taken)

    def withdraw(self, attempt_id: AttemptId) -> None:
        """Withdraw a notice that serves no job any more, as long as no host of the victim knows."""
        notices = self._store.notices
        if self._wiring.rechecks_delivered and attempt_id not in notices.idle():
            return
        if not notices.is_open(attempt_id):
            return
        self._server.failpoint("reclaim.withdraw.before_commit")
        notices.withdraw(attempt_id, self._kernel.now_ms)
        self._server.failpoint("reclaim.withdraw.after_commit")

    def lapse(self, job_id: JobId, why: str) -> None:
        """End the hold for a job that remains pending, or is no longer pending."""
        self._server.failpoint("reclaim.lapse.before_commit")
        self._store.let_go(job_id, why)
        self._server.failpoint("reclaim.lapse.after_commit")

    def let_go_of_idle(self, job_id: JobId) -> None:
        """End the hold of a job that neither leaves for another size nor is pending."""
        if job_id in self.idle_holders():
            self.lapse(job_id, "the job that it was for is no longer pending")

    def idle_holders(self) -> list[JobId]:
        store, promised = self._store, self._store.notices.holds()
        own = dict.fromkeys(job_id for job_id in store.hold_of.values() if job_id not in promised)
        return [job_id for job_id in own if not self._still_needs(job_id)]

    def _still_needs(self, job_id: JobId) -> bool:
        job, live = self._store.jobs[job_id], self._store.live_of_job.get(job_id)
        if live is not None:
            return self._store.attempts[live].stop is not None
        return (
            job.state in JOBS_THAT_WAIT_FOR_GPUS
            and (job.next_try_ms or 0) <= self._kernel.now_ms + self._server.timers.heartbeat_ms
        )

    def grow(self, growth: Growth) -> None:
        """Ask the attempt to save and leave, and hold its larger place for its job."""
        store = self._store
        life = store.attempts[growth.attempt_id]
        row = store.rows[life.job_id]
        own = [gpu for part in store.allocated[growth.attempt_id].values() for gpu in part]
        wanted = [(node_id, gpu) for node_id, part in growth.parts for gpu in part]
        is_as_seen = len(life.hosts) == growth.from_nodes and len(growth.parts) <= row.most_nodes
        is_running = life.state is AttemptState.RUNNING and life.stop is None and life.ending is None
        if not is_running or not is_as_seen or not self._may_have(row, wanted, own):
            self.num_lost += 1
            return
        grace_ms = max(int(store.rules.policy.elastic.grace_s * 1000), row.stop_grace_ms)
        self._server.resize_to(growth.attempt_id, grace_ms, [gpu for _, gpu in wanted])

    def _may_have(self, row: JobRow, wanted: Sequence[tuple[NodeId, GpuUuid]], own: Collection[GpuUuid]) -> bool:
        """Return whether the job may have all ``wanted`` GPUs, of which it has its ``own`` already."""
        store = self._store
        if any((gpu in store.holders and gpu not in own) or gpu in store.hold_of for _, gpu in wanted):
            return False
        is_refused = any(self._placer.not_admitted(*place, row) for place in wanted)
        return not is_refused and not self._placer.is_over_quota(row, len(wanted) - len(own))
