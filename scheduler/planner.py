"""The planner: whole gangs onto admitted, free GPUs of one cohort; reclaim where that is due; a sentence for the rest.

Pure: the same fleet, queue, workload and policy give the same plan (I19). Jobs go by ``scheduler.order``; a gang that
does not fit is passed by smaller ones behind it, but for the place that is held for it (``scheduler.backfill``). Jobs
with equal requests fail together, so a queue of ten thousand jobs that cannot be placed costs little more than one. An
elastic job takes as many of the hosts that it wishes for as there are, and no fewer than its fewest; for those alone
anything is reclaimed.
"""

from collections.abc import Hashable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from muster.domain.ids import JobId, NodeId, TenantId
from muster.domain.policy import Policy
from muster.domain.queue_policy import CONSERVATIVE
from muster.domain.wait_reasons import WaitReason
from scheduler import explain
from scheduler.backfill import EasyBackfill
from scheduler.closing import closing_of
from scheduler.conservative import ConservativeBackfill
from scheduler.elastic import enlarge, grow, nodes_within
from scheduler.fair_share import FairShares, in_turns
from scheduler.fragmentation import mix_of
from scheduler.funnel import Funnel, funnel
from scheduler.held_places import HeldPlaces
from scheduler.lending import Claim
from scheduler.model import (
    NO_TENANT,
    GpuView,
    Growth,
    Held,
    Lapse,
    Parts,
    Placement,
    Plan,
    Reclaim,
    RunningAttempt,
    StandingReclaim,
    Turn,
    Verdict,
    Waiting,
    WaitingJob,
    Withdrawal,
    Workload,
)
from scheduler.order import in_order, is_passed_enough
from scheduler.reclaim import Coming, Notified, Outcome, Reclaimer, Refused
from scheduler.recovery import replan, still_good, swap_of, wait_until_ms
from scheduler.solver import Chosen, Request, could_ever_fit, fitting_size, parts_of, place, request_of
from scheduler.spares import Spares
from scheduler.tenancy import Holdings, Tenancy
from scheduler.topology import FleetState

__all__ = [
    "GpuView",
    "Lapse",
    "Parts",
    "Placement",
    "Plan",
    "Reclaim",
    "RunningAttempt",
    "StandingReclaim",
    "Waiting",
    "WaitingJob",
    "Withdrawal",
    "Workload",
    "plan",
    "plan_on",
]

MAX_BENEFICIARIES: Final = 64
"""Reclaims are chosen for so many jobs in a cycle; the next cycle goes on."""
MAX_HELD_ANEW: Final = 4
"""So many that nothing could be held for are tried again when a reclaim frees more than its beneficiary takes."""


def plan(
    gpus: Sequence[GpuView],
    queue: Iterable[WaitingJob],
    policy: Policy,
    workload: Workload | None = None,
    *,
    levels: Sequence[str] | None = None,
) -> Plan:
    """Place what fits, in order; say of each other job why it waits; reclaim and withdraw as the policy has it.

    ``queue`` holds every waiting job that a standing reclaim is for: one that is missing waits no more, and what was
    being reclaimed for it is withdrawn. ``levels`` name the entries of the GPUs' paths, widest first; by default the
    policy's.
    """
    return plan_on(FleetState(gpus, policy, levels), queue, policy, workload)


def plan_on(state: FleetState, queue: Iterable[WaitingJob], policy: Policy, workload: Workload | None = None) -> Plan:
    """As ``plan``, on a state that stands already: afterwards it has taken what was placed and what is held."""
    cycle = _Cycle(state, policy, workload)
    now_ms = None if workload is None else workload.now_ms
    cycle.run(in_order(list(queue), policy, now_ms, len(state.layout.uuids)))
    return cycle.plan()


@dataclass(frozen=True, slots=True)
class _Found:
    """``is_of_all``: it holds for each job with the same request."""

    verdict: Verdict
    is_of_all: bool = False


@dataclass(slots=True)
class _Cycle:
    state: FleetState
    policy: Policy
    workload: Workload | None
    reclaimer: Reclaimer | None = None
    backfill: HeldPlaces | None = None
    spares: Spares | None = None
    holdings: Holdings = field(default_factory=lambda: Holdings(Tenancy()))
    unplaceable: set[Request] = field(default_factory=set)
    unpassable: set[tuple[Request, tuple[int, ...]]] = field(default_factory=set)
    forgiving: dict[Request, Request] = field(default_factory=dict)
    verdicts: dict[tuple[Request, TenantId, Hashable], Verdict] = field(default_factory=dict)
    placements: list[Placement] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    num_beneficiaries: int = 0
    growths: list[Growth] = field(default_factory=list)
    holds: list[Held] = field(default_factory=list)
    held_for: dict[JobId, tuple[WaitingJob, Request, Funnel]] = field(default_factory=dict)
    unheld: dict[JobId, tuple[WaitingJob, Request]] = field(default_factory=dict)
    turns: dict[JobId, Turn] = field(default_factory=dict)
    shares: FairShares | None = None
    enlargeable: dict[int, tuple[WaitingJob, Request, Chosen]] = field(default_factory=dict)
    has_hopeful: bool = False
    """Whether anybody waits who could use GPUs that are idle, now or with others that come free."""

    def run(self, ordered: Sequence[WaitingJob]) -> None:
        if self.workload is not None:
            self._begin(self.workload, ordered)
        running = () if self.workload is None else self.workload.running
        self.shares = FairShares(self.state, self.policy, running, ordered, self.holdings)
        for job, turn in in_turns(ordered, self.shares, self.policy, self._is_passed_enough):
            self.turns[job.job_id] = turn
            with nullcontext() if self.spares is None else self.spares.open_to(job):
                verdict = self._decide(job)
            if verdict is not None:
                self.waiting.append(Waiting(job.job_id, self._with_turn(job, verdict), turn))
        if self.has_hopeful or (self.workload is not None and self.workload.others_wait):
            return
        self._enlarge()
        if self.workload is not None and self.workload.may_grow:
            self.growths = grow(self.state, self.policy, self.workload, self.holdings)

    def _begin(self, workload: Workload, ordered: Sequence[WaitingJob]) -> None:
        """What stands already: what ends, is held and promised, and what each tenant has."""
        self.state.close(workload.closings)
        self.state.expect(mix_of(self.policy.placement.fragmentation, workload.running, ordered))
        self.reclaimer = Reclaimer(self.state, self.policy, workload)
        self.holdings = Holdings(workload.tenancy)
        self.backfill = self._rule(self.reclaimer, workload.now_ms)
        self.reclaimer.hold_standing({job.job_id for job in ordered if job.tier in self.policy.tiers})
        waiting = {job.job_id: job for job in ordered} if workload.holds else {}
        for own in workload.holds:
            self.reclaimer.promises.hold_own(own)
            if own.job_id in waiting:
                self._comes_to(waiting[own.job_id], len(own.gpus))
        self.spares = Spares(self.state, self.policy, workload)
        for attempt in workload.running:
            self.holdings.add(attempt.tenant_id, attempt.tier, len(attempt.gpus))
        for job in ordered:
            if job.job_id in self.reclaimer.promises:
                self.reclaimer.lending.comes(job.tenant_id, job.tier, job.fewest_gpus)

    @property
    def is_conservative(self) -> bool:
        return self.policy.queue.backfill == CONSERVATIVE

    def _rule(self, reclaimer: Reclaimer, now_ms: int) -> HeldPlaces:
        if self.is_conservative:
            return ConservativeBackfill(self.state, self.policy, reclaimer, now_ms, self.holdings)
        return EasyBackfill(self.state, self.policy, reclaimer, now_ms)

    def _is_passed_enough(self, job: WaitingJob) -> bool:
        return is_passed_enough(job, self.policy, len(self.state.layout.uuids))

    def _with_turn(self, job: WaitingJob, verdict: Verdict) -> Verdict:
        if self.turns[job.job_id] is Turn.OVER and self.shares is not None:
            return explain.over_share(verdict, self.shares.over_gpus(job) or 0.0)
        return explain.passed_enough(verdict) if self._is_passed_enough(job) else verdict

    def plan(self) -> Plan:
        placements, waiting = tuple(self.placements), tuple(self.waiting)
        if self.reclaimer is None:
            return Plan(placements, waiting)
        promises = self.reclaimer.promises
        reclaims = tuple(self.reclaimer.reclaims)
        lapses = tuple(promises.lapses)
        withdrawals, growths = tuple(promises.withdrawals), tuple(self.growths)
        return Plan(placements, waiting, reclaims, withdrawals, lapses, growths, tuple(self.holds))

    def _decide(self, job: WaitingJob) -> Verdict | None:
        """None when the job is placed, else why it waits."""
        promises = None if self.reclaimer is None else self.reclaimer.promises
        own = None if promises is None else promises.lift_own(job.job_id)
        if promises is None or own is None:
            return self._tried(job)
        self.unplaceable.clear()  # for the job itself there is more than there was
        self._comes_to(job, -len(own.gpus))
        verdict = self._tried(job)
        if verdict is not None and any(reason.token is WaitReason.REPLACEMENT for reason in verdict.reasons):
            promises.hold_own(own)  # all of it: what is held beside its good hosts the commit refuses to others
            self._comes_to(job, len(own.gpus))
        elif verdict is not None:
            promises.lapses.append(Lapse(job.job_id, "with what was held for it it cannot go on now"))
        return verdict

    def _comes_to(self, job: WaitingJob, num_gpus: int) -> None:
        """What is held for a job that waits is on its way to its tenant, as the commit counts it."""
        if self.reclaimer is not None:
            self.reclaimer.lending.comes(job.tenant_id, job.tier, num_gpus)

    def _tried(self, job: WaitingJob) -> Verdict | None:
        if job.tier not in self.policy.tiers:
            return explain.unknown_tier(job.tier)
        within = self._within_quota(job)
        over_quota = self._over_quota(job, within)
        if over_quota is not None:
            if self.reclaimer is not None and job.job_id in self.reclaimer.promises:
                self.reclaimer.withdraw(job.job_id, "its tenant has reached its quota")
            return over_quota
        closing_ms = None if self.workload is None else closing_of(self.state, job, self.policy, self.workload.now_ms)
        is_reclaimable = self.policy.tier(job.tier).notice_s is not None
        request = request_of(job, is_reclaimable=is_reclaimable, closing_ms=closing_ms)
        if self.spares is not None and self.spares.may_use(job):
            request = replace(request, may_use_spares=True)
        unforgiving = request.sized(min(job.nodes, within))
        request = self._forgiving(unforgiving) if job.avoid_nodes else unforgiving
        if self.reclaimer is not None and job.job_id in self.reclaimer.promises:
            return self._decide_promised(self.reclaimer, job, request)
        awaited = self._swap_or_wait(job, unforgiving)
        if awaited is not None:
            return awaited
        if self._may_start(job) and (
            self._pass(job, request) or self._place(job, request) or self._place_beside(job, request)
        ):
            return None
        lending = None if self.reclaimer is None else self.reclaimer.lending
        claim = None if lending is None else lending.claim(job.tenant_id, job.tier, job.fewest_gpus)
        told_apart_by = None if self.backfill is None else self.backfill.told_apart_by(job)
        alike = request, NO_TENANT if claim is None else job.tenant_id, told_apart_by
        if alike not in self.verdicts:
            found = self._refused_or_held(job, request, claim)
            if not found.is_of_all:
                return found.verdict
            self.verdicts[alike] = found.verdict
        return self.verdicts[alike]

    def _forgiving(self, request: Request) -> Request:
        """A host is avoided no more where the gang could never be placed without it: it would wait for ever.

        As few as may be: of the avoided, one after another by id, each stays so without which there is a place still.
        """
        found = self.forgiving.get(request)
        if found is None:
            found = request
            if not self._could_be(request) and self._could_be(replace(request, avoid_nodes=frozenset())):
                avoided = frozenset[NodeId]()
                for node_id in sorted(request.avoid_nodes):
                    if self._could_be(replace(request, avoid_nodes=avoided | {node_id})):
                        avoided |= {node_id}
                found = replace(request, avoid_nodes=avoided)
            self.forgiving[request] = found
        return found

    def _could_be(self, request: Request) -> bool:
        return could_ever_fit(self.state, request.at_least())

    def _refused_or_held(self, job: WaitingJob, request: Request, claim: Claim | None) -> "_Found":
        """Reclaim for it, or hold a place for it; else it is as with all jobs of its request."""
        can_ever_fit = could_ever_fit(self.state, request.at_least())
        self.has_hopeful = self.has_hopeful or can_ever_fit
        through = self._funnel(request)
        outcome = self._reclaim(job, request.at_least(), claim)
        if isinstance(outcome, Notified):
            self._hold_anew()
            return _Found(explain.reclaimed_for_it(request, outcome.until_ms, through))
        if can_ever_fit:
            refused = outcome if isinstance(outcome, Refused) else None
            held = self._hold(job, request, through, refused, is_coming=isinstance(outcome, Coming))
            if held is not None and refused is not None and held.is_by_reclaim:
                helped = replace(refused, until_ms=held.until_ms)
                return _Found(explain.no_room(self.state, request, helped, self.policy, through, held=held))
            if held is not None:
                return _Found(explain.held_for_it(request, held, through))
            if len(self.unheld) < MAX_HELD_ANEW:
                self.unheld[job.job_id] = job, request
        passed = None if self.backfill is None else self.backfill.in_the_way(request.at_least())
        verdict = explain.no_room(self.state, request, outcome, self.policy, through, held_until_ms=passed)
        return _Found(verdict, is_of_all=True)

    def _hold(
        self,
        job: WaitingJob,
        request: Request,
        through: Funnel,
        refused: Refused | None = None,
        *,
        is_coming: bool = False,
    ) -> Held | None:
        if self.backfill is None:
            return None
        held = self.backfill.hold(job, request, refused, is_coming=is_coming)
        if held is not None:
            self.holds.append(held)
            self.held_for[job.job_id] = job, request, through
        return held

    def _hold_anew(self) -> None:
        """Victims were chosen, whose GPUs come free soon: who is earlier in the queue counts on the rest of them first.

        Else the next cycle would give it to them, and reclaim once more for who had counted on it in this one.
        """
        for job, request in list(self.unheld.values()):
            held = self._hold(job, request, self._funnel(request))
            if held is not None:
                del self.unheld[job.job_id]
                self._tell_anew([held])

    def _tell_anew(self, holds: Iterable[Held]) -> None:
        told: dict[JobId, Waiting] = {}
        for held in holds:
            job, request, through = self.held_for[held.job_id]
            words = self._with_turn(job, explain.held_for_it(request, held, through))
            told[job.job_id] = Waiting(job.job_id, words, self.turns[job.job_id])
        self.waiting = [told.get(one.job_id, one) for one in self.waiting]

    def _funnel(self, request: Request) -> Funnel:
        if self.reclaimer is not None:
            return funnel(self.state, request, self.reclaimer.promises.mask)
        return funnel(self.state, request, np.zeros(len(self.state.layout.uuids), dtype=np.bool_))

    def _pass(self, job: WaitingJob, request: Request) -> bool:
        """Run where a place is held for another that this one is gone before."""
        holds = () if self.backfill is None else self.backfill.open_to(job.believed_s)
        if self.backfill is None or not holds or (request, holds) in self.unpassable:
            return False
        with self.backfill.lifted(holds):
            kept = replan(self.state, request, job.keep) if job.keep else None
            chosen = kept or self.backfill.place(request, holds) or self._place_smaller(job, request)
            if chosen is not None and self.state.is_spare[chosen.gpus].any() and not request.may_use_spares:
                chosen = None  # held for one that may
            if chosen is not None:
                self._take(job, request, chosen)
        if chosen is None and not job.keep:
            self.unpassable.add((request, holds))
        return chosen is not None

    def _may_start(self, job: WaitingJob) -> bool:
        return self.backfill is None or self.backfill.may_start(job)

    def _place_beside(self, job: WaitingJob, request: Request) -> bool:
        """Run where a place is held for another that has found a new one."""
        chosen = None if self.backfill is None else self.backfill.beside(job, request)
        if self.backfill is None or chosen is None:
            return False
        self._take(job, request, chosen)
        self.unplaceable.clear()  # what was held for those is idle, and the other way round
        self.unpassable.clear()
        moved = {held.job_id: held for held in self.backfill.moved()}
        self.holds = [moved.get(held.job_id, held) for held in self.holds]
        self._tell_anew(moved.values())
        return True

    def _swap_or_wait(self, job: WaitingJob, request: Request) -> Verdict | None:
        """A gang that lost hosts of its required domain keeps the others for a while, where none takes their place."""
        until_ms = wait_until_ms(job, request, self.policy, self.workload)
        if until_ms is None or replan(self.state, request, job.keep) is not None:
            return None
        kept = still_good(self.state, request, job.keep)
        if kept is None:
            return None
        through, uuids = self._funnel(request), self.state.layout.uuids
        self.state.take(kept)
        held = Held(job.job_id, tuple(uuids[gpu] for gpu in kept), len(kept), until_ms)
        self.holds.append(held)
        self.has_hopeful = True
        return explain.awaits_replacement(request, held, through)

    def _over_quota(self, job: WaitingJob, within: int) -> Verdict | None:
        """I6, as the commit will ask it again."""
        if within >= job.fewest_nodes:
            return None
        limit = self.holdings.limit(job.tenant_id, job.tier)
        if limit is None:
            message = "a job without a limit is over it: a bug of ours"
            raise AssertionError(message)
        return explain.over_quota(job, limit)

    def _within_quota(self, job: WaitingJob) -> int:
        """The most hosts that it may have, of those that it takes."""
        return nodes_within(job, self.holdings)

    def _place(self, job: WaitingJob, request: Request) -> bool:
        chosen: Chosen | None = None
        if job.keep:
            chosen = replan(self.state, request, job.keep)
        if chosen is None and request not in self.unplaceable:
            chosen = self._home(request) or self._place_smaller(job, request)
        if chosen is None:
            self.unplaceable.add(request)
            return False
        self._take(job, request, chosen)
        return True

    def _place_smaller(self, job: WaitingJob, request: Request) -> Chosen | None:
        """An elastic job goes on with what there is, rather than to wait for all that it wishes for."""
        smaller = fitting_size(self.state, request)
        if smaller is None:
            return None
        return (replan(self.state, smaller, job.keep) if job.keep else None) or self._home(smaller)

    def _home(self, request: Request) -> Chosen | None:
        return place(self.state, request, in_order=self.is_conservative)

    def _take(self, job: WaitingJob, request: Request, chosen: Chosen) -> None:
        self.state.take(chosen.gpus)
        self.holdings.add(job.tenant_id, job.tier, len(chosen.gpus))
        if self.reclaimer is not None:
            self.reclaimer.endings.placed(job, chosen.gpus)
            if job.job_id not in self.reclaimer.promises:
                self.reclaimer.lending.comes(job.tenant_id, job.tier, len(chosen.gpus))
        if request.min_nodes is not None and len(chosen.cells) < job.most_nodes:
            self.enlargeable[len(self.placements)] = (job, request, chosen)
        self.placements.append(self._placement(job, chosen))

    def _placement(self, job: WaitingJob, chosen: Chosen) -> Placement:
        parts = parts_of(self.state, job.tier, chosen)
        swap = None if job.interrupted_ms is None or not job.keep else swap_of(job.keep, parts)
        return Placement(job.job_id, job.version, parts, swap)

    def _enlarge(self) -> None:
        """Nobody waits: what was placed with fewer hosts than it takes has more of them where they are idle."""
        for index, (job, request, chosen) in self.enlargeable.items():
            self.holdings.add(job.tenant_id, job.tier, -len(chosen.gpus))
            larger = enlarge(self.state, request, chosen, self._within_quota(job)) or chosen
            self.state.give(chosen.gpus)
            self.state.take(larger.gpus)
            self.holdings.add(job.tenant_id, job.tier, len(larger.gpus))
            self.placements[index] = self._placement(job, larger)

    def _decide_promised(self, reclaimer: Reclaimer, job: WaitingJob, request: Request) -> Verdict | None:
        """A job that GPUs are being reclaimed for is tried by itself: it alone may take what is held for it."""
        promises, self.has_hopeful = reclaimer.promises, True
        promises.lift(job.job_id)
        was_unplaceable = request in self.unplaceable
        self.unplaceable.discard(request)
        is_placed = self._place(job, request)
        if was_unplaceable:
            self.unplaceable.add(request)
        if is_placed:
            reclaimer.withdraw(job.job_id, "the job that it was for has been placed")
            return None
        through = self._funnel(request)
        if not reclaimer.still_suffices(job.job_id, request.at_least()):
            reclaimer.withdraw(job.job_id, "it would no longer make room for the job that it was for")
            return explain.planned_anew(request, through)
        promises.hold(job.job_id, promises.held(job.job_id))
        return explain.reclaimed_for_it(request, promises.deadline_ms(job.job_id), through)

    def _reclaim(self, job: WaitingJob, request: Request, claim: Claim | None) -> Outcome:
        if self.reclaimer is None or self.num_beneficiaries == MAX_BENEFICIARIES:
            return Refused()
        outcome = self.reclaimer.choose(job.job_id, request, claim)
        if isinstance(outcome, Notified):
            self.num_beneficiaries += 1
            self.reclaimer.lending.comes(job.tenant_id, job.tier, job.fewest_gpus)
        return outcome
