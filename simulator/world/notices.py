"""The notices of attempts, each with its states, and what tenants have lost by them in the window (I9)."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from muster.domain.ids import AttemptId, JobId
from muster.domain.lifecycle.model import AttemptLifecycle
from muster.domain.policy.tiers import ReclaimPolicy
from muster.domain.states import RECLAIM_EDGES, Cause, ReclaimState, require_edge
from scheduler.reclaim.withdrawal import may_be_withdrawn
from simulator.world.rows import Notice
from simulator.world.truth import require

_KEPT: Final = frozenset({ReclaimState.WITHDRAWN, ReclaimState.OVERTAKEN})
"""States in which the tenant lost nothing by the reclaim itself."""


@dataclass(slots=True)
class Notices:
    """The notices of a world. ``newest``: of each attempt; a withdrawn one may be followed by another."""

    newest: dict[AttemptId, Notice] = field(default_factory=dict)
    tenants: dict[AttemptId, str] = field(default_factory=dict)
    holdings: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    num_withdrawn: int = 0

    def __iter__(self) -> Iterator[AttemptId]:
        return iter(self.newest)

    def get(self, attempt_id: AttemptId) -> Notice | None:
        return self.newest.get(attempt_id)

    def items(self) -> list[tuple[AttemptId, Notice]]:
        return list(self.newest.items())

    def give(self, attempt_id: AttemptId, tenant: str, notice: Notice) -> None:
        before = self.newest.get(attempt_id)
        is_first = before is None or before.state is not ReclaimState.NOTIFIED
        require(is_first, "I8", f"{attempt_id} is given notice twice: {before} and {notice}")
        self.newest[attempt_id], self.tenants[attempt_id] = notice, tenant

    def is_open(self, attempt_id: AttemptId) -> bool:
        notice = self.newest.get(attempt_id)
        return notice is not None and notice.state is ReclaimState.NOTIFIED

    def untold(self, attempt_id: AttemptId) -> Notice | None:
        """Return the notice of the attempt if it stands and none of its hosts knows of it."""
        notice = self.newest.get(attempt_id)
        if notice is None or not may_be_withdrawn(notice.state, is_delivered=notice.is_delivered):
            return None
        return notice

    def report(self, attempt_id: AttemptId) -> None:
        self.newest[attempt_id] = replace(self.newest[attempt_id], is_delivered=True)

    def holds(self) -> dict[JobId, list[tuple[AttemptId, Notice]]]:
        """Return by job the notices that free GPUs for it, as long as it waits for them, whatever the victims do."""
        found: dict[JobId, list[tuple[AttemptId, Notice]]] = {}
        for attempt_id, notice in self.newest.items():
            if notice.beneficiary is not None and notice.hold_ended is None:
                found.setdefault(notice.beneficiary, []).append((attempt_id, notice))
        return found

    def idle(self) -> list[AttemptId]:
        """Return the attempts whose notices serve no job any more, and of which no host knows."""
        return [key for key in self.newest if (one := self.untold(key)) is not None and one.hold_ended is not None]

    def end_hold(self, beneficiary: JobId, why: str) -> None:
        for attempt_id, notice in self.holds().get(beneficiary, ()):
            self.newest[attempt_id] = replace(notice, hold_ended=why)

    def settle(self, life: AttemptLifecycle, at_ms: int) -> None:
        """Settle the notice of an attempt that has ended."""
        if self.is_open(life.attempt_id):
            is_by_it = life.ending is not None and life.ending.cause is Cause.RECLAIMED
            self._move(life.attempt_id, ReclaimState.RELEASED if is_by_it else ReclaimState.OVERTAKEN, at_ms)

    def withdraw(self, attempt_id: AttemptId, at_ms: int) -> None:
        """Withdraw a notice that no host knows of."""
        notice = self.newest[attempt_id]
        require(
            not notice.is_delivered,
            "withdrawal",
            f"a host of {attempt_id} knows its notice, and the reclaim is withdrawn",
        )
        self._move(attempt_id, ReclaimState.WITHDRAWN, at_ms)
        self.num_withdrawn += 1

    def _move(self, attempt_id: AttemptId, state: ReclaimState, at_ms: int) -> None:
        notice = self.newest[attempt_id]
        require_edge(RECLAIM_EDGES, notice.state, state)
        self.newest[attempt_id] = replace(notice, state=state, settled_ms=at_ms)

    def note_holdings(self, tenant: str, at_ms: int, num_gpus: int) -> None:
        self.holdings.setdefault(tenant, []).append((at_ms, num_gpus))

    def peak_gpus(self, tenant: str, since_ms: int) -> int:
        """Return the most GPUs that the tenant had at one time since then."""
        peak = before = 0
        for at_ms, num_gpus in self.holdings.get(tenant, ()):
            before = before if at_ms > since_ms else num_gpus
            peak = max(peak, num_gpus if at_ms > since_ms else 0)
        return max(peak, before)

    def lost(self, since_ms: int) -> Iterator[tuple[str, AttemptId, Notice]]:
        """Yield the notices that count against the caps of a window that began then.

        They were settled in it, or are not settled yet.
        """
        for attempt_id, notice in self.newest.items():
            is_in = notice.settled_ms is None or notice.settled_ms > since_ms
            if is_in and notice.state not in _KEPT and notice.gpus:
                yield self.tenants[attempt_id], attempt_id, notice

    def require_within_cap(self, tenant: str, now_ms: int, smallest: int, policy: ReclaimPolicy) -> None:
        """Require I9, computed independently. ``smallest``: GPUs of the tenant's smallest running job."""
        since_ms = now_ms - int(policy.window_s * 1000)
        lost = sum(len(notice.gpus) for whose, _, notice in self.lost(since_ms) if whose == tenant)
        most = max(policy.cap_fraction * self.peak_gpus(tenant, since_ms), smallest)
        require(lost <= most, "I9", f"{tenant} loses {lost} GPUs in a window, and {most} is the most")
