"""The reasons of one cycle by family of requests: a queue of many sizes asks for few of them.

All that a reason counts depends on the request's family (``Request.family``) and on the state alone. The number of
hosts decides only which of the counts binds.
"""

from scheduler.explain.exclusions import Exclusions, Funnel, exclusions
from scheduler.explain.free_room import FreeRoom, free_room
from scheduler.fleet.kept_values import KeptValues
from scheduler.fleet.topology import FleetState
from scheduler.queue.examination import Examination
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.request import Request


class KeptReasons:
    """The reasons of one cycle, given the GPUs that are held for others. ``examination`` counts each new one."""

    def __init__(self, state: FleetState, reclaimer: Reclaimer, examination: Examination) -> None:
        self._state, self._reclaimer, self.examination = state, reclaimer, examination
        self._exclusions: KeptValues[Exclusions] = KeptValues()
        self._rooms: KeptValues[FreeRoom] = KeptValues()

    def funnel(self, request: Request) -> Funnel:
        """Return the funnel of a gang that does not fit."""
        holds = self._reclaimer.holds
        stamp = self._state.stamp, holds.num_changes

        def compute() -> Exclusions:
            self.examination.computed()
            return exclusions(self._state, request, holds.mask)

        return self._exclusions.get(stamp, request.family, compute).funnel(request.fewest_nodes)

    def room(self, request: Request) -> FreeRoom:
        """Return the room that is free to the request's family."""
        return self._rooms.get(self._state.stamp, request.family, lambda: free_room(self._state, request))
