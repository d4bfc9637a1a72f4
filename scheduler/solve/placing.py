"""The start of gangs in one cycle: each place is taken in the fleet's state when found, and counted for its tenant.

A gang starts on GPUs without a hold; on held GPUs if it ends before the hold's job starts (``scheduler.holds.places``);
or on held GPUs whose job has found others. Equal requests fail together: each is tried once, until more GPUs are free.
"""

from muster.domain.ids import NodeId
from muster.domain.policy.document import Policy
from muster.domain.policy.queue import CONSERVATIVE
from scheduler.fleet.kept_values import KeptValues
from scheduler.fleet.topology import FleetState, NodeFilter
from scheduler.holds.places import Holds
from scheduler.model import Placement, WaitingJob
from scheduler.quota.tenancy import Holdings
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.elastic import enlarge, nodes_within
from scheduler.solve.node_filter import node_filter_of
from scheduler.solve.recovery import replan, swap_of
from scheduler.solve.solver import Chosen, Request, could_ever_fit, fitting_size, most_nodes, parts_of, place


def could_be(state: FleetState, request: Request) -> bool:
    """Return whether its fewest hosts would fit with every GPU idle that its tier admits."""
    return could_ever_fit(state, request.at_least())


class Placing:
    """The placements of one cycle. ``placements``: in the order in which they were found."""

    def __init__(
        self,
        state: FleetState,
        policy: Policy,
        holdings: Holdings,
        reclaimer: Reclaimer,
        backfill: Holds,
    ) -> None:
        self._state, self._policy, self._holdings = state, policy, holdings
        self._reclaimer, self._backfill = reclaimer, backfill
        self._in_order = policy.queue.backfill == CONSERVATIVE
        self._unplaceable: set[Request] = set()
        self._unpassable: set[tuple[Request, tuple[int, ...]]] = set()
        self._avoidable: dict[Request, frozenset[NodeId]] = {}
        self._most_unfiltered: KeptValues[int] = KeptValues()
        self._counted: set[tuple[str, int, NodeFilter]] = set()
        self._enlargeable: dict[int, tuple[WaitingJob, Request, Chosen]] = {}
        self.placements: list[Placement] = []

    def start(self, job: WaitingJob, request: Request) -> bool:
        """Place the job now if there is room, given the holds of others."""
        if self._backfill.reserved(job) is not None:
            return False
        return self._pass(job, request) or self._place(job, request) or self._place_alongside(job, request)

    def needs_count(self, request: Request) -> bool:
        """Return whether a try counts the fleet by labels that no request of this cycle has had yet."""
        if not request.rule.labels or self._fits_nowhere(request):
            return False
        layout = self._state.for_tier(request.tier)
        key = request.tier, request.gpus_per_node, node_filter_of(layout, request)
        is_new = key not in self._counted
        self._counted.add(key)
        return is_new

    def start_from_hold(self, job: WaitingJob, request: Request) -> bool:
        """Place a beneficiary by itself: the GPUs that are held for it are free for it alone just now."""
        was_unplaceable = request in self._unplaceable
        self._unplaceable.discard(request)
        is_placed = self._place(job, request)
        if was_unplaceable:
            self._unplaceable.add(request)
        return is_placed

    def on_capacity_added(self) -> None:
        """Forget which requests failed: GPUs are free that were not, and holds may have other numbers."""
        self._unplaceable.clear()
        self._unpassable.clear()

    def exempting(self, request: Request) -> Request:
        """Return the request with fewer hosts to avoid, if the gang could never be placed without them.

        The fewest possible are dropped: of the avoided hosts, one after another by id, each stays avoided if a place
        exists without it.
        """
        avoided = self._avoidable.get(request)
        if avoided is None:
            avoided = self._avoidable[request] = self._avoidable_of(request)
        # Equal requests may differ in preferences, so none takes the place of another.
        return request if avoided == request.avoid_nodes else request.avoiding(avoided)

    def _avoidable_of(self, request: Request) -> frozenset[NodeId]:
        if could_be(self._state, request) or not could_be(self._state, request.avoiding(frozenset())):
            return request.avoid_nodes
        avoided = frozenset[NodeId]()
        for node_id in sorted(request.avoid_nodes):
            if could_be(self._state, request.avoiding(avoided | {node_id})):
                avoided |= {node_id}
        return avoided

    def enlarge(self) -> None:
        """Enlarge placements with fewer hosts than the job takes, on idle GPUs. No job is pending."""
        for index, (job, request, chosen) in self._enlargeable.items():
            self._holdings.add(job.tenant_id, job.tier, -len(chosen.gpus))
            larger = enlarge(self._state, request, chosen, nodes_within(job, self._holdings)) or chosen
            self._state.give(chosen.gpus)
            self._state.take(larger.gpus)
            self._holdings.add(job.tenant_id, job.tier, len(larger.gpus))
            self.placements[index] = self._placement(job, larger)

    def _pass(self, job: WaitingJob, request: Request) -> bool:
        """Run the job on held GPUs if it ends before the hold's job starts."""
        holds = self._backfill.open_to(job)
        if not holds or (request, holds) in self._unpassable:
            return False
        if not job.keep:
            widest = request.unfiltered() if request.is_filtered else request
            if self._backfill.most_nodes(widest, holds) < request.fewest_nodes:
                return False
            if request.is_filtered and self._backfill.most_nodes(request, holds) < request.fewest_nodes:
                return False
        with self._backfill.lifted(holds):
            kept = replan(self._state, request, job.keep) if job.keep else None
            chosen = kept or self._backfill.place(request, holds) or self._smaller(job, request)
            if chosen is not None and self._state.is_spare[chosen.gpus].any() and not request.may_use_spares:
                chosen = None  # held for one that may
            if chosen is not None:
                self._take(job, request, chosen)
        if chosen is None and not job.keep:
            self._unpassable.add((request, holds))
        return chosen is not None

    def _place(self, job: WaitingJob, request: Request) -> bool:
        chosen = replan(self._state, request, job.keep) if job.keep else None
        if chosen is None and request not in self._unplaceable and not self._fits_nowhere(request):
            chosen = self._home(request) or self._smaller(job, request)
        if chosen is None:
            self._unplaceable.add(request)
            return False
        self._take(job, request, chosen)
        return True

    def _fits_nowhere(self, request: Request) -> bool:
        """Return whether a filtered request would not fit on any hosts: one count serves all filters."""
        if not request.is_filtered:
            return False
        widest = request.unfiltered()
        most = self._most_unfiltered.get(self._state.stamp, widest.family, lambda: most_nodes(self._state, widest))
        return most < request.fewest_nodes

    def _place_alongside(self, job: WaitingJob, request: Request) -> bool:
        """Run the job on held GPUs whose job has found others."""
        chosen = self._backfill.alongside(job, request)
        if chosen is None:
            return False
        self._take(job, request, chosen)
        self._unplaceable.clear()  # the GPUs of moved holds are idle, and others are not
        self._unpassable.clear()
        return True

    def _smaller(self, job: WaitingJob, request: Request) -> Chosen | None:
        """Return a place with fewer hosts for an elastic job, which does not wait for all that it requests."""
        smaller = fitting_size(self._state, request)
        if smaller is None:
            return None
        return (replan(self._state, smaller, job.keep) if job.keep else None) or self._home(smaller)

    def _home(self, request: Request) -> Chosen | None:
        return place(self._state, request, in_order=self._in_order)

    def _take(self, job: WaitingJob, request: Request, chosen: Chosen) -> None:
        self._state.take(chosen.gpus)
        self._holdings.add(job.tenant_id, job.tier, len(chosen.gpus))
        self._reclaimer.endings.placed(job, chosen.gpus)
        if job.job_id not in self._reclaimer.holds:
            self._reclaimer.lending.comes(job.tenant_id, job.tier, len(chosen.gpus))
        if request.min_nodes is not None and len(chosen.cells) < job.most_nodes:
            self._enlargeable[len(self.placements)] = (job, request, chosen)
        self.placements.append(self._placement(job, chosen))

    def _placement(self, job: WaitingJob, chosen: Chosen) -> Placement:
        parts = parts_of(self._state, job.tier, chosen)
        swap = None if job.interrupted_ms is None or not job.keep else swap_of(job.keep, parts)
        return Placement(job.job_id, job.version, parts, swap)
