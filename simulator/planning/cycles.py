"""The scheduler's cycles: a plan by ``scheduler.planner`` on a snapshot, each decision committed a while later."""

from collections import Counter
from dataclasses import replace
from itertools import groupby
from random import Random
from typing import Final

from muster.domain.ids import NodeId
from muster.domain.states import Contact, StopReason
from scheduler.model import Plan, Question, Swap
from simulator.planning.firm_starts import fault_of_firm_starts
from simulator.planning.keeping import fault_of_kept
from simulator.planning.lending import fault_of_lent
from simulator.planning.snapshot import Snapshot, take
from simulator.world.kernel import Action, Kernel
from simulator.world.placing import Placer
from simulator.world.reclaiming import Reclaims
from simulator.world.server import Server
from simulator.world.settings import Settings
from simulator.world.truth import require
from simulator.world.wiring import Wiring

_CHECKS_AGAIN_BEATS: Final = 20
"""A plan that only the passing of time calls for is at most so late."""


class Planner:
    """The scheduler of the world. ``num_plans``: how many plans it made; ``num_decided``: its decisions, by kind."""

    name = "planner"

    def __init__(
        self,
        kernel: Kernel,
        rng: Random,
        settings: Settings,
        wiring: Wiring,
        server: Server,
        placer: Placer,
        reclaims: Reclaims,
    ) -> None:
        self._kernel, self._rng, self._settings, self._wiring, self._server = kernel, rng, settings, wiring, server
        self._store, self._placer, self._reclaims = server.store, placer, reclaims
        self._planned_on: tuple[object, ...] = ()
        self._planned_ms = 0
        self._newest: tuple[Question, Plan] | None = None
        self.num_plans = 0
        self.num_decided: Counter[str] = Counter()

    def begin(self) -> None:
        """Start a second scheduler half a beat later: neither knows the other's uncommitted decisions."""
        if self._store.rules.num_schedulers > 1:
            self._kernel.after(self._settings.timers.heartbeat_ms // 2, self.select_too)

    def select_too(self) -> None:
        self._kernel.after(self._settings.reconcile_ms, self.select_too)
        if self._server.is_up:
            self._cycle()

    def select(self) -> None:
        self._clear_windows()
        self._cycle()

    def reclaim(self) -> None:
        """Run a cycle out of turn: only a plan reclaims."""
        self._cycle()

    def snapshot(self) -> Snapshot | None:
        contacts = {node_id: self._contact(node_id) for node_id in self._store.gpus}
        return take(self._store, self._kernel.now_ms, contacts, self._settings.timers.heartbeat_ms)

    def planned_twice(self) -> tuple[Plan | None, Plan | None]:
        """Return its newest plan, and the plan of the same facts in another order (I19, P6): neither is carried out."""
        if self._newest is None:
            return None, None
        (asked, answered), self._newest = self._newest, None  # once of each
        running = tuple(reversed(asked.workload.running))
        turned = replace(
            asked,
            gpus=asked.gpus[::-1],
            queue=asked.queue[::-1],
            workload=replace(asked.workload, running=running, reclaims=asked.workload.reclaims[::-1]),
        )
        return answered, self._wiring.plan(turned)

    def _contact(self, node_id: NodeId) -> Contact:
        return Contact.LIVE if self._placer.is_live(node_id) else Contact.SILENT

    def _cycle(self) -> None:
        """Run one cycle: first release holds that are no longer needed; notices and growth come last."""
        if not self._has_changed():
            return
        for job_id in self._reclaims.idle_holders():
            self._soon(self._reclaims.let_go_of_idle, job_id)
        for attempt_id in self._store.notices.idle():
            self._soon(self._reclaims.withdraw, attempt_id)
        snapshot = self.snapshot()
        if snapshot is None:
            return
        self.num_plans += 1
        plan = self._wiring.plan(snapshot.question)
        self._newest = snapshot.question, plan
        fault = fault_of_kept(snapshot.question, plan)
        require(fault is None, "given back", f"{fault}")
        fault = fault_of_firm_starts(snapshot.question, plan)
        require(fault is None, "I31", f"{fault}")
        lent = fault_of_lent(snapshot.question, plan)
        require(lent is None, "guarantee", f"{lent}")
        self._count(plan)
        self._carry_out(snapshot, plan)

    def _count(self, plan: Plan) -> None:
        decided = {
            "placement": plan.placements,
            "swap": [one for one in plan.placements if _is_swap(one.swap)],
            "reclaim": plan.reclaims,
            "shrink": [one for one in plan.reclaims if one.keeps],
            "withdrawal": plan.withdrawals,
            "lapse": plan.lapses,
            "growth": plan.growths,
            "hold": plan.holds,
            "firm start": [one for one in plan.waiting if one.firm_start is not None],
        }
        self.num_decided.update({kind: len(found) for kind, found in decided.items()})

    def _has_changed(self) -> bool:
        """Return whether anything has changed since the last plan.

        A lost commit needs another plan, though no fact changed.
        """
        store, now_ms = self._store, self._kernel.now_ms
        beat_ms = self._settings.timers.heartbeat_ms
        if now_ms - self._planned_ms < (store.rules.pause_beats - 1) * beat_ms:
            return False
        contacts = tuple(self._placer.is_live(node_id) for node_id in store.gpus)
        lost = self._placer.num_lost, self._reclaims.num_lost
        closed = len(store.is_out), tuple(sorted(store.nodes_on_hold))
        facts = store.num_changes, contacts, tuple(store.is_admitted.values()), closed, lost
        is_late = now_ms - self._planned_ms >= _CHECKS_AGAIN_BEATS * beat_ms
        if facts == self._planned_on and not is_late:
            return False
        self._planned_on, self._planned_ms = facts, now_ms
        return True

    def _carry_out(self, snapshot: Snapshot, plan: Plan) -> None:
        placed = {placement.job_id for placement in plan.placements}
        for lapse in plan.lapses:
            if lapse.beneficiary not in placed:
                self._soon(self._reclaims.lapse, lapse.beneficiary, lapse.why)
        for placement in plan.placements:
            self._soon(self._placer.commit, snapshot.seen[placement.job_id], dict(placement.parts))
        for job_id, chosen in groupby(plan.reclaims, key=lambda reclaim: reclaim.beneficiary):
            self._soon(self._reclaims.notify_all, snapshot.seen[job_id], tuple(chosen), snapshot.at_ms)
        for growth in plan.growths:
            self._soon(self._reclaims.grow, growth)
        self._store.firm_starts.update({one.job_id: (one.firm_start, one.postponed) for one in plan.waiting})

    def _soon(self, commit: Action, *args: object) -> None:
        """Commit after a random delay: several commits may be in progress at once."""
        delay_ms = 1 + int(self._rng.random() ** 3 * 3 * self._settings.timers.heartbeat_ms)
        self._kernel.after(delay_ms, self._server.receive, commit, *args)

    def _clear_windows(self) -> None:
        """Send stop requests to attempts on nodes whose planned work is near, so that they leave before it starts."""
        store, now_ms = self._store, self._kernel.now_ms
        for window in store.windows():
            if window.closes_ms > now_ms:
                continue
            for attempt_id in tuple(store.open_on[window.node_id]):
                life = store.attempts[attempt_id]
                if life.stop is None and life.ending is None and attempt_id in store.live_of_job.values():
                    grace_ms = max(window.starts_ms - now_ms, 0)
                    self.num_decided["clearing"] += 1
                    self._server.receive(self._server.stop, attempt_id, StopReason.MAINTENANCE, grace_ms)


def _is_swap(swap: Swap | None) -> bool:
    return swap is not None and swap.kept_nodes > 0 and swap.resized is None
