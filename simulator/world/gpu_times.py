"""Times of a world's GPUs: the truth of which attempt had each one, and what rows keep of it in production.

Times are the server's, in milliseconds of the world, except for steps: those are by the clock of the host that reports.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from health.standing.gpu_case import Move
from ledger.facts import Period, StandingMove, Steps
from muster.domain.ids import AttemptId, GpuUuid, NodeId
from muster.domain.lifecycle.model import AttemptLifecycle
from muster.domain.states import AttemptState, HostPartState
from simulator.world.truth import Lasting, Place

_STEPS_LATE: Final = (0, 0, 1, 40, 0, 3)
"""By how many steps' time the reports of steps come late, in turn."""


@dataclass(slots=True)
class GpuTimes:
    """``assigned``: the truth. The rest is what the control plane's rows say, as each commit stamps them.

    ``states``: when an attempt first came to each state; ``parts``: when a host's part did. ``steps``: by attempt, each
    with when its report arrives. ``contact_ms``: the newest heartbeat of each node; ``silences``: longer gaps.
    """

    clock: Callable[[], int]
    assigned: dict[tuple[AttemptId, GpuUuid], Lasting] = field(default_factory=dict)
    states: dict[AttemptId, dict[AttemptState, int]] = field(default_factory=dict)
    parts: dict[Place, dict[HostPartState, int]] = field(default_factory=dict)
    steps: dict[AttemptId, list[tuple[int, Steps]]] = field(default_factory=dict)
    moves: dict[GpuUuid, list[StandingMove]] = field(default_factory=dict)
    contact_ms: dict[NodeId, int] = field(default_factory=dict)
    silences: dict[NodeId, list[Period]] = field(default_factory=dict)

    def placed(self, attempt_id: AttemptId, picks: Mapping[NodeId, Iterable[GpuUuid]]) -> None:
        now_ms = self.clock()
        for gpu in (gpu for part in picks.values() for gpu in part):
            self.assigned[attempt_id, gpu] = Lasting(now_ms)

    def freed(self, attempt_id: AttemptId, gpu: GpuUuid) -> None:
        self.assigned[attempt_id, gpu].end_ms = self.clock()

    def changed(self, before: AttemptLifecycle, after: AttemptLifecycle) -> None:
        """Stamp what a commit changes, as ``control.attempts.mapping`` does."""
        if after.state is not before.state:
            self.states.setdefault(after.attempt_id, {}).setdefault(after.state, self.clock())
        if after.hosts is not before.hosts:
            for old, new in zip(before.hosts, after.hosts, strict=True):
                if new.state is not old.state:
                    self.parts.setdefault((after.attempt_id, new.node_id), {})[new.state] = self.clock()

    def judged(self, move: Move) -> None:
        told = self.moves.setdefault(move.gpu_uuid, [])
        told.append(StandingMove(move.at_ms, move.to_standing, move.reason.value, tuple(move.evidence_ids), len(told)))

    def note_contact(self, node_id: NodeId, lost_ms: int) -> None:
        now_ms = self.clock()
        since_ms = self.contact_ms.get(node_id, 0) + lost_ms
        if since_ms < now_ms:
            self.silences.setdefault(node_id, []).append(Period(since_ms, now_ms, "lost"))
        self.contact_ms[node_id] = now_ms

    def trained(self, attempt_id: AttemptId, wall_ms: int, took_ms: int) -> None:
        """Note the next step of the attempt, done at ``wall_ms`` by its host's clock. Some reports come late."""
        told = self.steps.setdefault(attempt_id, [])
        late_ms = _STEPS_LATE[len(told) % len(_STEPS_LATE)] * took_ms
        told.append((self.clock() + late_ms, Steps(len(told) + 1, len(told) + 1, wall_ms, took_ms)))
