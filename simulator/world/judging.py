"""The health of the world's GPUs: findings from hosts, the real rules under the real breaker, burn-ins."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from health.evidence.evidence import join
from health.standing import breaker
from health.standing.breaker import BreakerState, FleetCounts, GpuPlace
from health.standing.gpu_case import EVERY_GROUP, BurnInResult, GpuCase, Move, moved, proofs_of
from health.standing.standing import MOVES_AT_ONCE
from muster.domain.evidence.findings import Evidence, Finding, Severity, Trust
from muster.domain.evidence.traits import FaultGroup
from muster.domain.ids import EvidenceId, GpuUuid
from muster.domain.lifecycle.attempt import Command
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Standing, StopReason
from simulator.world.clocks import WALL_START_MS
from simulator.world.kernel import Kernel
from simulator.world.node_holds import NodeHolds
from simulator.world.server import Server
from simulator.world.settings import Settings
from simulator.world.standings import Standings
from simulator.world.truth import require
from simulator.world.wiring import Wiring

_MOST_PAST_MOVES: Final = 8
_MOST_BURN_INS: Final = 4
WORLDS_WITH_NARROW_BURN_INS: Final = 0.25
"""The share of worlds in which a burn-in may leave out some groups of faults."""


class Judge:
    name = "judge"

    def __init__(
        self, kernel: Kernel, rng: Random, settings: Settings, wiring: Wiring, server: Server, coverage: Random
    ) -> None:
        """``coverage``: draws what burn-ins cover, apart from ``rng``, so that other worlds are as they were."""
        self._kernel, self._rng, self._settings, self._wiring, self._server = kernel, rng, settings, wiring, server
        self._store = store = server.store
        self.standings = Standings({gpu: node_id for node_id, part in store.gpus.items() for gpu in part})
        self.is_calm = False
        racks = {node_id: f"rack{number % 2}" for number, node_id in enumerate(store.gpus)}
        self._places = {gpu: GpuPlace(rack=racks[node_id]) for node_id, part in store.gpus.items() for gpu in part}
        by_rack: dict[str, int] = {}
        for place in self._places.values():
            by_rack[place.rack or ""] = by_rack.get(place.rack or "", 0) + 1
        self._counts = FleetCounts(len(self._places), by_rack=by_rack, places=self._places)
        self.node_holds = NodeHolds(kernel, wiring, server, self.standings, self._counts)
        store.cases = {gpu: GpuCase(gpu, Standing.HEALTHY, self._wall_ms()) for gpu in self._places}
        self.proposed: set[GpuUuid] = set()
        self._burning: dict[GpuUuid, int] = {}
        self._coverage = coverage
        self.has_narrow_burn_ins = coverage.random() < WORLDS_WITH_NARROW_BURN_INS
        self._num_evidence = 0

    def _wall_ms(self) -> int:
        return WALL_START_MS + self._kernel.now_ms

    def take(self, findings: tuple[Finding, ...]) -> None:
        """Take a host's findings: evidence, transitions, breaker and evacuation are one transaction."""
        now_ms, policy = self._wall_ms(), self._wiring.health_policy
        cases: dict[GpuUuid, GpuCase] = {}
        told = list[tuple[Finding, FaultGroup]]()
        for finding in findings:
            if finding.gpu_uuid is None:
                continue
            case = cases.get(finding.gpu_uuid) or self._store.cases[finding.gpu_uuid]
            self._num_evidence += 1
            reference_ms = now_ms if self._wiring.clamps_times else 1 << 60
            found = join(finding, case.evidence, policy, reference_ms, EvidenceId(f"ev{self._num_evidence}")).evidence
            others = tuple(each for each in case.evidence if each.id != found.id)
            cases[finding.gpu_uuid] = replace(case, evidence=(*others, found))
            if _condemns(finding):
                told.append((finding, found.traits.group))
        self._judge(cases, told)

    def _judge(self, cases: dict[GpuUuid, GpuCase], reported: Iterable[tuple[Finding, FaultGroup]] = ()) -> None:
        now_ms, wiring = self._wall_ms(), self._wiring
        state, moves, held_back = self._store.breaker, list[tuple[Move, GpuCase]](), set[GpuUuid]()
        restless = list[GpuUuid]()
        for gpu, judged in cases.items():
            case = judged
            for _ in range(MOVES_AT_ONCE):
                move = wiring.decide(case, now_ms, wiring.health_policy)
                if move is None:
                    break
                ruling = wiring.admit([move], state, self._counts, wiring.health_policy, now_ms)
                state = ruling.state
                if move not in ruling.allowed:
                    held_back.add(gpu)
                    break
                moves.append((move, case))
                case = moved(case, move)
            else:
                restless += [gpu] if wiring.decide(case, now_ms, wiring.health_policy) is not None else []
            cases[gpu] = case
        self._server.failpoint("judgement.judge.before_commit")
        for finding, group in reported:
            self.standings.condemns(finding, group, now_ms)
        rings = self._commit(cases, state, moves)
        require(not restless, "rest", f"the rules move {restless} more than {MOVES_AT_ONCE} times at one moment")
        self.proposed = (self.proposed - cases.keys()) | held_back
        self._server.failpoint("judgement.judge.after_commit")
        self._server.send_wakeups(rings)

    def _commit(
        self, cases: dict[GpuUuid, GpuCase], state: BreakerState, moves: list[tuple[Move, GpuCase]]
    ) -> tuple[Command, ...]:
        store, rings = self._store, list[Command]()
        self.standings.sees(state)
        store.breaker = state
        for gpu, case in cases.items():
            store.cases[gpu] = case
            (store.is_out.add if case.standing in OUT_OF_SERVICE else store.is_out.discard)(gpu)
        for move, before in moves:
            self.standings.moves(move, before, self._counts)
            store.times.judged(move)
            if move.to_standing is Standing.PROBATION:  # evidence from before the proof is no longer needed
                case = store.cases[move.gpu_uuid]
                kept = self._unanswered(case)
                store.cases[move.gpu_uuid] = replace(case, evidence=kept, moves=case.moves[-_MOST_PAST_MOVES:])
            if move.to_standing is Standing.QUARANTINED and move.threatens_correctness:
                rings += self._evacuate(move.gpu_uuid)
        return tuple(rings)

    def _unanswered(self, case: GpuCase) -> tuple[Evidence, ...]:
        """Return the evidence that the burn-in does not cover, where burn-ins are narrow."""
        proofs = proofs_of(case) if self.has_narrow_burn_ins else None
        return () if proofs is None else tuple(each for each in case.evidence if not proofs.answer(each))

    def _evacuate(self, gpu: GpuUuid) -> Sequence[Command]:
        attempt_id = self._store.holders.get(gpu)
        if attempt_id is None or attempt_id not in self._store.live_of_job.values():
            return ()
        return self._server.stop_in(attempt_id, StopReason.EVACUATION, 0)

    def keep_up(self) -> None:
        """Start burn-ins on free GPUs that are out of service; now and then close the breaker as a person does."""
        self.node_holds.keep()
        if not self._store.is_out and not self._store.breaker.open_since_ms and not self.proposed:
            return
        now_ms, again_ms = self._wall_ms(), 10 * self._settings.timers.heartbeat_ms
        for gpu in sorted(self._store.is_out):
            is_burning = now_ms - self._burning.get(gpu, -again_ms) < again_ms
            if gpu not in self._store.holders and not is_burning:
                self._burning[gpu] = now_ms
                passes = self.is_calm or self._rng.random() < 0.8
                delay_ms = 1 + int(self._rng.random() * 4 * self._settings.timers.heartbeat_ms)
                covers = self._covered()
                self._kernel.after(delay_ms, self._server.receive, self.burned, gpu, now_ms, passes, covers)
        scopes = self._store.breaker.open_since_ms
        if scopes and (self.is_calm or self._rng.random() < 0.05):
            self.close_breaker(next(iter(scopes)))
        elif self.is_calm and self.proposed and not scopes:
            self._judge({gpu: self._store.cases[gpu] for gpu in sorted(self.proposed)})

    def _covered(self) -> frozenset[FaultGroup]:
        """Return the fault groups that the next burn-in tests."""
        if self.is_calm or not self.has_narrow_burn_ins:
            return EVERY_GROUP
        return frozenset(group for group in FaultGroup if self._coverage.random() < 0.7)

    def burned(
        self,
        gpu: GpuUuid,
        began_ms: int,
        has_passed: bool,  # noqa: FBT001  # by place, as all received
        covers: frozenset[FaultGroup],
    ) -> None:
        """Take the result of a burn-in."""
        self._burning.pop(gpu, None)
        case = self._store.cases[gpu]
        if case.standing is not Standing.QUARANTINED:
            return
        result = BurnInResult(began_ms, self._wall_ms(), has_passed, covers)
        if has_passed:
            self.standings.proves(gpu, covers, began_ms)
        kept = case.burn_ins[1 - _MOST_BURN_INS :] if self.has_narrow_burn_ins else case.burn_ins[-1:]
        self._judge({gpu: replace(case, burn_ins=(*kept, result))})

    def close_breaker(self, scope: str) -> None:
        """Let rules act again, as a person does, and judge again what was held back."""
        self._server.failpoint("breaker.close.before_commit")
        state = breaker.close(self._store.breaker, scope, self._wall_ms())
        self.standings.sees(state, closed=scope)
        self._store.breaker = state
        self.standings.accepted[scope] = self.standings.num_taken
        self._server.failpoint("breaker.close.after_commit")
        self._judge({gpu: self._store.cases[gpu] for gpu in sorted(self.proposed)})

    def is_at_rest(self) -> bool:
        """Return whether every GPU is back, and nothing needs a person."""
        return not self._store.is_out and not self.proposed and not self._store.nodes_on_hold


def _condemns(finding: Finding) -> bool:
    return finding.severity is Severity.CONDEMNING and finding.trust is Trust.MEASURED
