"""The GPUs of a scenario at the present moment, and the planned work that closes nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import Policy
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Contact
from scheduler.fleet.maintenance_end import maintenance_ends_of
from scheduler.model import GpuView, Parts
from simulator.scenarios.document import Scenario
from simulator.scenarios.fleet_form import GpuState
from simulator.scenarios.shown import Window, views_of, windows_of


class PlayedFleet:
    """The fleet of a scenario. ``windows``: the planned work, whether it is over or not."""

    def __init__(self, scenario: Scenario, policy: Policy) -> None:
        self._policy = policy
        self._gpus: dict[GpuUuid, GpuView] = {view.uuid: view for view in views_of(scenario)}
        self._cordoned: set[GpuUuid] = set()
        self.windows: Sequence[Window] = list(windows_of(scenario))

    def views(self) -> list[GpuView]:
        return list(self._gpus.values())

    def change(self, state: GpuState) -> None:
        for uuid, view in self._gpus.items():
            if view.node_id != state.node or (state.slots is not None and view.slot_index not in state.slots):
                continue
            (self._cordoned.add if state.is_cordoned else self._cordoned.discard)(uuid)
            facts = replace(view.facts, standing=state.standing, contact=state.contact, is_cordoned=state.is_cordoned)
            hazard = self._policy.placement.hazard
            cost = hazard.failures_in_million_h(state.score * 100, state.quarantines)
            self._gpus[uuid] = replace(view, facts=facts, health_cost=cost)

    def hold(self, uuids: Sequence[GpuUuid], *, is_assigned: bool) -> None:
        for uuid in uuids:
            view = self._gpus[uuid]
            self._gpus[uuid] = replace(view, facts=replace(view.facts, is_assigned=is_assigned))

    def taken_of(self, node: str, num_gpus: int) -> tuple[GpuUuid, ...]:
        """Return the first free GPUs of a node, and mark them as used.

        Raises:
            ValueError: fewer are free.
        """
        free = [view.uuid for view in self._gpus.values() if view.node_id == node and not view.facts.is_assigned]
        if len(free) < num_gpus:
            message = f"takes {num_gpus} GPUs of {node}, which has {len(free)} left"
            raise ValueError(message)
        self.hold(free[:num_gpus], is_assigned=True)
        return tuple(free[:num_gpus])

    def nodes_of(self, uuids: Sequence[GpuUuid]) -> list[NodeId]:
        """Return each node once, in the order of the GPUs."""
        return list(dict.fromkeys(self._gpus[uuid].node_id for uuid in uuids))

    def slots_of(self, parts: Parts) -> list[list[int]]:
        return [[self._gpus[uuid].slot_index for uuid in uuids] for _, uuids in parts]

    def is_out(self, uuids: Sequence[GpuUuid]) -> bool:
        """Return whether any of them may no longer be used."""
        facts = [self._gpus[uuid].facts for uuid in uuids]
        return any(one.standing in OUT_OF_SERVICE or one.contact is Contact.LOST for one in facts)

    def edges_ms(self) -> Iterator[int]:
        """Yield the times at which planned work changes something."""
        for window in self.windows:
            yield from (window.closes_ms, window.starts_ms, window.until_ms)

    def cordon_for_work(self, now_ms: int) -> None:
        """Cordon nodes while planned work is done; nodes that were cordoned before stay so after it."""
        begun = [window for window in self.windows if window.starts_ms <= now_ms]
        concerned = {node for window in begun for node in window.nodes}
        closed = {node for window in begun if now_ms < window.until_ms for node in window.nodes}
        for uuid, view in self._gpus.items():
            if view.node_id in concerned:
                is_cordoned = view.node_id in closed or uuid in self._cordoned
                self._gpus[uuid] = replace(view, facts=replace(view.facts, is_cordoned=is_cordoned))

    def maintenance_ends(self, now_ms: int) -> Mapping[NodeId, int]:
        """Return the end of planned work on each node, without nodes that are cordoned by hand."""
        by_hand = {self._gpus[uuid].node_id for uuid in self._cordoned}
        ahead = [window for window in self.windows if now_ms < window.until_ms]
        nodes = ((node, one.starts_ms, one.until_ms) for one in ahead for node in one.nodes if node not in by_hand)
        return maintenance_ends_of(nodes)

    def maintenance_starts(self, now_ms: int) -> Mapping[NodeId, int]:
        """Return from when on planned work excludes jobs from each node."""
        moments: dict[NodeId, int] = {}
        for window in self.windows:
            if now_ms < window.until_ms:
                for node in window.nodes:
                    moments[node] = min(window.closes_ms, moments.get(node, window.closes_ms))
        return moments
