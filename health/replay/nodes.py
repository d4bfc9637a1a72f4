"""A replay's nodes: evidence about each, the part of it that keeps new work off, and declared times of work on them."""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

from health.evidence.index import WORSE_THAN_INFO, EvidenceIndex
from health.evidence.suppression import outlasted, weighs_from_ms
from health.replay.stream import Maintained
from health.standing.rule_cordon import cordoned_until_ms, holding, lookback_ms
from muster.domain.evidence.findings import Evidence
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy


@dataclass(slots=True)
class ReplayedNode:
    """One node.

    ``cordoned_by``: as it was settled last. ``cordoned_gpus``: the GPUs of its hold; None: it has none.
    ``evaluation_ms``: when time alone may change that, None: it does not.
    """

    known: EvidenceIndex = field(default_factory=EvidenceIndex)
    cordoned_by: tuple[EvidenceId, ...] = ()
    cordoned_gpus: tuple[GpuUuid, ...] | None = None
    evaluation_ms: int | None = None

    def settle(self, policy: HealthPolicy, now_ms: int) -> tuple[Evidence, ...] | None:
        """Return the evidence that keeps work off the node from now on; None where it is the same as before.

        Pending evidence counts as standing once its time is over: a record states when a fault ends.
        """
        for each in self.known.pending():
            self.known.put(outlasted(each, now_ms))
        found = holding(self.known.on(WORSE_THAN_INFO, now_ms - lookback_ms(policy)), policy, now_ms)
        due = [weighs_from_ms(each) for each in self.known.pending()]
        due += [cordoned_until_ms(each, policy) for each in found]
        self.evaluation_ms = min((at_ms for at_ms in due if at_ms is not None and at_ms > now_ms), default=None)
        before, self.cordoned_by = self.cordoned_by, tuple(each.id for each in found)
        return found if set(before) != set(self.cordoned_by) else None

    def cordoning(self) -> tuple[Evidence, ...]:
        """Return the evidence of ``cordoned_by``."""
        return tuple(each for each in self.known.values() if each.id in self.cordoned_by)


@dataclass(slots=True)
class Windows:
    """Maintenance windows and drains of all nodes."""

    _of: defaultdict[NodeId, list[Maintained]] = field(default_factory=lambda: defaultdict(list))
    _ends: list[tuple[int, NodeId]] = field(default_factory=list)

    def add(self, window: Maintained) -> None:
        self._of[window.node_id].append(window)
        heapq.heappush(self._ends, (window.until_ms, window.node_id))

    def hold(self, node_id: NodeId, at_ms: int, *, is_drain: bool = False) -> bool:
        """Return whether a window (or, with ``is_drain``, a drain) stands over the node then."""
        known = self._of.get(node_id, ())
        return any(each.at_ms <= at_ms < each.until_ms for each in known if each.is_drain is is_drain)

    def stand(self, node_id: NodeId, at_ms: int) -> bool:
        """Return whether one of either kind stands over the node then."""
        return any(self.hold(node_id, at_ms, is_drain=is_drain) for is_drain in (False, True))

    def next_end(self, until_ms: int) -> tuple[int, NodeId] | None:
        """Remove and return the next window that ends by then; None where none does."""
        return heapq.heappop(self._ends) if self._ends and self._ends[0][0] <= until_ms else None
