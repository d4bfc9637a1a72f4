"""The truth about findings, moves and holds of a world, computed apart from the rules.

The invariants I10, I11, I25, I26 and I28 are checked against it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from health.standing.breaker import FLEET_WINDOW, BreakerState, FleetCounts
from health.standing.gpu_case import GpuCase, Move, MoveReason
from muster.domain.evidence.findings import Finding
from muster.domain.evidence.traits import FaultGroup
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Standing
from simulator.world.truth import require

_BY_RATE: Final = frozenset({MoveReason.LOW_SCORE, MoveReason.REPORTED_EVIDENCE, MoveReason.FLAPPING})
_TRUE_POLICY: Final = DEFAULT_POLICY.health
STAYS_OUT: Final = frozenset({Standing.SUSPECT, Standing.QUARANTINED, Standing.REPAIR})


@dataclass(slots=True)
class Standings:
    """The truth about findings, transitions and holds of nodes.

    ``taken_ms``, ``taken_as``: GPU → when, and under which number, a rule took it out last; ``out``: the GPUs that are
    out by their standing. ``is_exempt``: the GPUs that a threat to correctness took out with their node, whatever the
    caps. ``accepted``: scope → the takings before a person closed it last. ``open_since_ms``: the breaker's scopes at
    the last check. ``wrong_ms``: when a finding last condemned a GPU whose results may be wrong, by its fault group;
    ``covered_ms``: when the newest passed burn-in began that covers the group.
    """

    node_of: Mapping[GpuUuid, NodeId]
    taken_ms: dict[GpuUuid, int] = field(default_factory=dict)
    out: set[GpuUuid] = field(default_factory=set)
    nodes_on_hold: set[NodeId] = field(default_factory=set)
    is_exempt: set[GpuUuid] = field(default_factory=set)
    num_taken: int = 0
    taken_as: dict[GpuUuid, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    open_since_ms: dict[str, int] = field(default_factory=dict)
    condemned_ms: dict[GpuUuid, int] = field(default_factory=dict)
    proved_ms: dict[GpuUuid, int] = field(default_factory=dict)
    wrong_ms: dict[tuple[GpuUuid, FaultGroup], int] = field(default_factory=dict)
    covered_ms: dict[tuple[GpuUuid, FaultGroup], int] = field(default_factory=dict)

    def condemns(self, finding: Finding, group: FaultGroup, now_ms: int) -> None:
        """Note a finding that condemns a GPU; a host whose clock is fast reports it as of now."""
        gpu, told_ms = finding.gpu_uuid or GpuUuid(""), min(finding.onset_ms, now_ms)
        self.condemned_ms[gpu] = max(told_ms, self.condemned_ms.get(gpu, 0))
        if finding.threatens_correctness:
            self.wrong_ms[gpu, group] = max(told_ms, self.wrong_ms.get((gpu, group), 0))

    def proves(self, gpu: GpuUuid, covers: Collection[FaultGroup], began_ms: int) -> None:
        """Note a burn-in that passed."""
        self.proved_ms[gpu] = max(began_ms, self.proved_ms.get(gpu, 0))
        for group in covers:
            self.covered_ms[gpu, group] = max(began_ms, self.covered_ms.get((gpu, group), 0))

    def doubted(self) -> Iterator[tuple[GpuUuid, FaultGroup]]:
        """Yield each GPU whose results may be wrong, with the part that no burn-in has tested since."""
        return (each for each, wrong_ms in self.wrong_ms.items() if self.covered_ms.get(each, 0) <= wrong_ms)

    def moves(self, move: Move, case: GpuCase, counts: FleetCounts) -> None:
        gpu = move.gpu_uuid
        if move.to_standing is Standing.QUARANTINED or (move.to_standing is Standing.SUSPECT and not self._is_out(gpu)):
            self._takes(gpu, move.at_ms)
            self.out.add(gpu)
            self._require_within_caps(gpu, move.at_ms, counts, is_node_out=self.node_of[gpu] in self.nodes_on_hold)
        elif move.to_standing is Standing.SUSPECT:
            self.out.add(gpu)
        elif move.to_standing not in STAYS_OUT:
            self.out.discard(gpu)
            self._forget_exempt()
        if move.from_standing is Standing.QUARANTINED and move.to_standing not in OUT_OF_SERVICE:
            proved_ms, condemned_ms = self.proved_ms.get(gpu), self.condemned_ms.get(gpu, 0)
            is_proved = proved_ms is not None and proved_ms > condemned_ms
            require(is_proved, "I11", f"{gpu} is back: condemned {condemned_ms}, passed {proved_ms}")
        if move.reason in _BY_RATE:
            cited = [each.last_seen_ms for each in case.evidence if each.id in move.evidence_ids]
            age_ms = move.at_ms - max(cited, default=0)
            is_fresh = age_ms <= int(_TRUE_POLICY.evidence.stale_action_s * 1000)
            require(is_fresh, "I26", f"{gpu} moves by what is {age_ms} ms old")

    def holds(self, node_id: NodeId, gpus: Sequence[GpuUuid], now_ms: int, counts: FleetCounts) -> None:
        """Note the hold of a node, a unit that has to fit: alone it does, whatever its size."""
        are_out = all(self._is_out(gpu) for gpu in gpus)
        self.nodes_on_hold.add(node_id)
        if not are_out:
            for gpu in gpus:
                self._takes(gpu, now_ms)
            for gpu in gpus:
                self._require_within_caps(gpu, now_ms, counts)

    def holds_for_correctness(self, node_id: NodeId, gpus: Sequence[GpuUuid], now_ms: int) -> None:
        """Note the hold of a node whose results may be wrong: no cap limits it."""
        self.is_exempt.update(gpu for gpu in gpus if not self._is_out(gpu))
        for gpu in gpus:
            if not self._is_out(gpu):
                self._takes(gpu, now_ms)
        self.nodes_on_hold.add(node_id)

    def releases(self, node_id: NodeId) -> None:
        self.nodes_on_hold.discard(node_id)
        self._forget_exempt()

    def _is_out(self, gpu: GpuUuid) -> bool:
        return gpu in self.out or self.node_of[gpu] in self.nodes_on_hold

    def _takes(self, gpu: GpuUuid, at_ms: int) -> None:
        self.num_taken += 1
        self.taken_ms[gpu], self.taken_as[gpu] = at_ms, self.num_taken

    def _forget_exempt(self) -> None:
        """Forget exemptions of GPUs that are back. Within the window such a GPU counts, as no longer exempt."""
        self.is_exempt = {gpu for gpu in self.is_exempt if self._is_out(gpu)}

    def _require_within_caps(self, gpu: GpuUuid, at_ms: int, counts: FleetCounts, *, is_node_out: bool = False) -> None:
        """Require that what rules have taken out, by whatever way, is within the cap of each scope of the GPU."""
        place, policy = counts.places[gpu], _TRUE_POLICY.breaker
        window_ms = at_ms - int(policy.window_s * 1000)
        rack = {each for each, other in counts.places.items() if other.rack == place.rack}
        scopes = (
            ("fleet_window", counts.places.keys(), policy.fleet_window_share, policy.fleet_window_floor),
            ("fleet", counts.places.keys(), policy.fleet_share, policy.fleet_floor),
            (f"rack:{place.rack}", rack, policy.rack_share, policy.rack_floor),
        )
        for scope, members, share, floor in scopes:
            cap, accepted = max(int(floor), int(share * len(members) + 1e-9)), self.accepted.get(scope, 0)
            counted = [
                each
                for each, taken_ms in self.taken_ms.items()
                if each in members
                and each not in self.is_exempt
                and self.taken_as[each] > accepted
                and (taken_ms > window_ms or (scope != FLEET_WINDOW and self._is_out(each)))
            ]
            if is_node_out:  # its node has taken it already: the standings alone have to fit
                counted = [each for each in counted if each in self.out or self.node_of[each] not in self.nodes_on_hold]
            is_one_unit = {self.node_of[each] for each in counted} <= {self.node_of[gpu]} & self.nodes_on_hold
            is_within = len(counted) <= cap or (is_one_unit and not is_node_out)
            require(is_within, "I10", f"rules took out {sorted(counted)}, and {scope} gives {cap}")

    def sees(self, state: BreakerState, closed: str | None = None) -> None:
        """Require that a scope that opened stays open until a person closes it (I25)."""
        lost = [scope for scope in self.open_since_ms if scope not in state.open_since_ms and scope != closed]
        require(not lost, "I25", f"the breaker has forgotten that {lost} is open")
        self.open_since_ms = dict(state.open_since_ms)
