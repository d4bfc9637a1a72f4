"""What a replay knows of a node as such: the evidence about it, and which of that keeps new work off it."""

from dataclasses import dataclass, field

from health.known import WORSE_THAN_INFO, Known
from health.node_hold import held_until_ms, holding, looks_back_ms
from health.weightless import outlasted, weighs_from_ms
from muster.domain.evidence import Evidence
from muster.domain.health_policy import HealthPolicy
from muster.domain.ids import EvidenceId


@dataclass(slots=True)
class ReplayedNode:
    """``held_by``: as it was settled last. ``look_ms``: when time alone may change that, None: it does not."""

    known: Known = field(default_factory=Known)
    held_by: tuple[EvidenceId, ...] = ()
    look_ms: int | None = None

    def settle(self, policy: HealthPolicy, now_ms: int) -> tuple[Evidence, ...] | None:
        """What holds it from now on, where that is other evidence than before; else None.

        What waits until it has lasted is taken to stand: a record says when it is over.
        """
        for each in self.known.pending():
            self.known.put(outlasted(each, now_ms))
        found = holding(self.known.on(WORSE_THAN_INFO, now_ms - looks_back_ms(policy)), policy, now_ms)
        due = [weighs_from_ms(each) for each in self.known.pending()]
        due += [held_until_ms(each, policy) for each in found]
        self.look_ms = min((at_ms for at_ms in due if at_ms is not None and at_ms > now_ms), default=None)
        before, self.held_by = self.held_by, tuple(each.id for each in found)
        return found if set(before) != set(self.held_by) else None
