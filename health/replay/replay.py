"""Replay: the judgement repeated over recorded reports and events by production's own rules, without a database.

Pure: readings, events, burn-ins, acts of persons, and a policy in; evidence, scores, moves and holds of nodes out, each
with its time. Between two inputs time passes: decay, dwell and the end of a probation move GPUs at the times at which
they would have moved. A scope of the breaker that opened stays open until a record states that a person closed it.
Reports that came late judge no sample, as in production; their events count.
"""

import heapq
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from health.detectors.detector import NO_OWN_HEAT, Closing, Findings, own_heat_in
from health.detectors.node import gpus_at_fault
from health.detectors.registry import GpuMemory, closings_between, closings_of, judge_sample, judge_signal
from health.detectors.repeats.repair_repeats import repairs_of
from health.evidence.evidence import after_maintenance, close
from health.evidence.index import EVERYTHING, EvidenceIndex, of_detector, of_fault, that_may_weigh
from health.evidence.merge import Place, merge
from health.evidence.state import is_open
from health.evidence.suppression import outlasted
from health.replay.acts import CaseAct, case_after, found_by
from health.replay.breaker import ReplayedBreaker
from health.replay.nodes import ReplayedNode, Windows
from health.replay.stream import (
    BreakerClosed,
    Burned,
    Dismissed,
    Fleet,
    Found,
    Input,
    KnownBefore,
    Maintained,
    Moved,
    Moving,
    Opened,
    Output,
    Overridden,
    Passed,
    Placed,
    RepairBegan,
    RepairEnded,
    ReplayLine,
    RuleCordon,
    Sampled,
    Scored,
    Unmet,
)
from health.standing.breaker import GpuPlace, Taking, Way
from health.standing.gpu_case import GpuCase, Move, condemning_of, diagnosed_ms_of, moved, score_of
from health.standing.interventions import RefusedMoveError
from health.standing.standing import MOVES_AT_ONCE, decide, next_evaluation_ms
from muster.domain.evidence.findings import EventKind, Evidence, Finding, GpuSignal, Severity
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing

_NO_GPU = GpuUuid("")
"""The key of a node's own check in the queue of due checks."""


@dataclass(slots=True)
class _Gpu:
    """One GPU. ``case`` holds only the evidence that may weigh, as of the last judgement.

    ``proposed``: the standing to which the breaker does not let it move.
    """

    memory: GpuMemory
    case: GpuCase
    known: EvidenceIndex = field(default_factory=EvidenceIndex)
    score: float = 100.0
    proposed: Standing | None = None
    evaluation_ms: int | None = None


@dataclass(slots=True)
class Replay:
    """Feed inputs in the order in which they arrived. ``standing``: of a GPU without an earlier input."""

    policy: HealthPolicy
    standing: Standing = Standing.HEALTHY
    breaker: ReplayedBreaker = field(default_factory=ReplayedBreaker)
    now_ms: int = 0
    _gpus: dict[GpuUuid, _Gpu] = field(default_factory=dict)
    _nodes: defaultdict[NodeId, ReplayedNode] = field(default_factory=lambda: defaultdict(ReplayedNode))
    _seen: set[str] = field(default_factory=set)
    _num_evidence: int = 0
    _evaluations: list[tuple[int, GpuUuid, NodeId]] = field(default_factory=list)
    _repairs_ms: defaultdict[NodeId, list[int]] = field(default_factory=lambda: defaultdict(list))
    _windows: Windows = field(default_factory=Windows)
    _on_node: defaultdict[NodeId, dict[GpuUuid, None]] = field(default_factory=lambda: defaultdict(dict))

    def gpus(self) -> Mapping[GpuUuid, GpuCase]:
        """Return the cases as they are now."""
        return {uuid: replace(gpu.case, evidence=tuple(gpu.known.values())) for uuid, gpu in self._gpus.items()}

    def num_checked(self) -> int:
        """Return how much evidence all merges have read: the measure of a replay's time."""
        places = [gpu.known for gpu in self._gpus.values()] + [node.known for node in self._nodes.values()]
        return sum(each.num_checked for each in places)

    def evidence(self) -> tuple[Evidence, ...]:
        """Return all evidence as it is now, of GPUs and of nodes."""
        of_gpus = (each for gpu in self._gpus.values() for each in gpu.known.values())
        return (*of_gpus, *(each for node in self._nodes.values() for each in node.known.values()))

    def take(self, given: Input) -> Iterator[Output]:
        """Yield the outputs of the time since the last input, then the outputs of ``given``."""
        yield from self._pass_time(given.at_ms)
        match given:
            case Sampled():
                yield from self._sampled(given)
            case GpuSignal():
                yield from self._signalled(given)
            case Found():
                yield from self._took_note((given.finding,), ())
            case Burned():
                yield from self._burned(given)
            case Dismissed() | RepairBegan() | RepairEnded() | Moving():
                yield from self._acted(given)
            case Overridden():
                yield given
            case BreakerClosed():
                if self.breaker.close(given.scope, self.now_ms):
                    yield from self._retry()
            case _:
                yield from self._stands(given)

    def _retry(self) -> Iterator[Output]:
        """Decide again on everything that the breaker held back."""
        yield from self._judge([uuid for uuid, gpu in self._gpus.items() if gpu.proposed is not None])
        for node_id in [
            node_id for node_id, node in self._nodes.items() if node.cordoned_by and node.cordoned_gpus is None
        ]:
            yield from self._settle(node_id)

    def _stands(self, given: Placed | KnownBefore | Fleet | Maintained | Passed) -> Iterator[Output]:
        """Apply an input that states a condition rather than an occurrence."""
        match given:
            case Placed():
                self._place(given)
                yield from self._judge([given.gpu_uuid])
            case KnownBefore():
                yield from self._knew(given.evidence)
            case Fleet():
                self.breaker.fleet = given
            case Maintained():
                self._windows.add(given)

    def _place(self, given: Placed) -> None:
        placed = self._new(given.gpu_uuid, given.node_id, given.at_ms, given.standing)
        known = self._gpus.get(given.gpu_uuid)
        own_heat = NO_OWN_HEAT if known is None else known.memory.own_heat
        placed.memory = replace(placed.memory, model=given.model, own_heat=own_heat)
        since_ms = given.at_ms if given.since_ms is None else given.since_ms
        placed.case = replace(placed.case, since_ms=since_ms, origin=given.origin)
        self._gpus[given.gpu_uuid] = placed
        self.breaker.places[given.gpu_uuid] = GpuPlace(given.rack, given.cohort)

    def _knew(self, evidence: Evidence) -> Iterator[Output]:
        if evidence.gpu_uuid is not None:
            self._known(evidence.gpu_uuid, evidence.node_id)
        self._keep(evidence)
        yield from self._judge([] if evidence.gpu_uuid is None else [evidence.gpu_uuid])
        if evidence.gpu_uuid is None:
            yield from self._settle(evidence.node_id)

    def _burned(self, given: Burned) -> Iterator[Output]:
        new = self._new(given.gpu_uuid, given.node_id, given.result.began_ms, self.standing)
        gpu = self._gpus.setdefault(given.gpu_uuid, new)
        gpu.case = replace(gpu.case, burn_ins=(*gpu.case.burn_ins, given.result))
        yield from self._took_note(found_by(given, self.policy), ())
        yield from self._judge([given.gpu_uuid])
        yield from self._settle_cordons(given.node_id)

    def _settle_cordons(self, node_id: NodeId) -> Iterator[Output]:
        """Settle a node that evidence keeps work off: a proof or dismissal of one of its GPUs may free it."""
        if self._nodes[node_id].cordoned_by:
            yield from self._settle(node_id)

    def _acted(self, act: CaseAct) -> Iterator[Output]:
        gpu = self._known(act.gpu_uuid, act.node_id)
        try:
            case = replace(gpu.case, evidence=tuple(gpu.known.values()))
            gpu.case, move = case_after(case, act, self.policy, self.now_ms)
        except RefusedMoveError as fault:
            yield Unmet(self.now_ms, act.gpu_uuid, str(fault))
            return
        for each in gpu.case.evidence:
            gpu.known.put(each)
        if move is not None:
            yield from self._rule(gpu, move)
        if isinstance(act, RepairBegan):
            began_ms = self._repairs_ms[act.node_id]
            began_ms.append(act.at_ms)
            yield from self._took_note(repairs_of(act.node_id, began_ms, self.policy, self.now_ms), ())
        yield from self._judge([act.gpu_uuid])
        yield from self._settle_cordons(act.node_id)

    def _pass_time(self, until_ms: int) -> Iterator[Output]:
        while (end := self._windows.next_end(until_ms)) is not None:
            yield from self._evaluate_until(end[0])
            yield from self._end_window(end[1])
        yield from self._evaluate_until(until_ms)

    def _end_window(self, node_id: NodeId) -> Iterator[Output]:
        """Let evidence of the window that still stands weigh from now on, unless another window continues."""
        if self._windows.stand(node_id, self.now_ms):
            return
        of_node = [gpu.known for _, gpu in self._gpus_on(node_id)]
        known = [each for place in (self._nodes[node_id].known, *of_node) for each in place.values()]
        weighing = [(each, after_maintenance(each, self.now_ms)) for each in known]
        about = dict.fromkeys(
            now.gpu_uuid for before, now in weighing if now is not before and now.gpu_uuid is not None
        )
        for before, now in weighing:
            if now is not before:
                self._keep(now)
        yield from self._judge(about)
        yield from self._settle(node_id)

    def _evaluate_until(self, until_ms: int) -> Iterator[Output]:
        while self._evaluations and self._evaluations[0][0] <= until_ms:
            look_ms, uuid, node_id = heapq.heappop(self._evaluations)
            due_ms = self._nodes[node_id].evaluation_ms if uuid == _NO_GPU else self._gpus[uuid].evaluation_ms
            if due_ms == look_ms:  # else it was checked since, and is due at another time
                self.now_ms = max(self.now_ms, look_ms)
                yield from self._settle(node_id) if uuid == _NO_GPU else self._judge([uuid])
        self.now_ms = max(self.now_ms, until_ms)

    def _new(self, uuid: GpuUuid, node_id: NodeId, at_ms: int, standing: Standing) -> _Gpu:
        self._on_node[node_id][uuid] = None
        return _Gpu(GpuMemory(node_id), GpuCase(uuid, standing, at_ms))

    def _known(self, uuid: GpuUuid, node_id: NodeId) -> _Gpu:
        if uuid not in self._gpus:
            self._gpus[uuid] = self._new(uuid, node_id, self.now_ms, self.standing)
        return self._gpus[uuid]

    def _gpus_on(self, node_id: NodeId) -> list[tuple[GpuUuid, _Gpu]]:
        told = ((uuid, self._gpus[uuid]) for uuid in self._on_node[node_id] if uuid in self._gpus)
        return [(uuid, gpu) for uuid, gpu in told if gpu.memory.node_id == node_id]

    def _sampled(self, given: Sampled) -> Iterator[Output]:
        gpu = self._known(given.sample.gpu_uuid, given.node_id)
        if given.is_history:
            return
        before = gpu.memory
        gpu.memory, findings = judge_sample(before, given.sample, self.policy, self.now_ms)
        yield from self._took_note(findings, closings_between(before, gpu.memory, given.sample))

    def _signalled(self, signal: GpuSignal) -> Iterator[Output]:
        if signal.signal_id in self._seen:
            return
        self._seen.add(signal.signal_id)
        if signal.gpu_uuid is not None:
            gpu = self._known(signal.gpu_uuid, signal.node_id)
            if signal.kind is EventKind.GPU_STATE:
                gpu.memory = replace(gpu.memory, own_heat=own_heat_in(signal.values))
        yield from self._took_note(judge_signal(signal, self.policy), closings_of(signal, self.policy))

    def _took_note(self, findings: Findings, closings: Iterable[Closing]) -> Iterator[Output]:
        closings = tuple(closings)
        said: tuple[Finding | Closing, ...] = (*findings, *closings)
        nodes = dict.fromkeys(each.node_id for each in said if each.gpu_uuid is None)
        nodes |= dict.fromkeys(each.node_id for each in findings if each.severity is Severity.CONDEMNING)
        about: dict[GpuUuid, None] = {}
        for finding in findings:
            if finding.gpu_uuid is not None:
                about[finding.gpu_uuid] = None
            yield from self._merged(finding)
        for closing in closings:
            for each in self._known_at(closing.gpu_uuid, closing.node_id).on(of_fault(closing.fault_key)):
                closed = close(each, closing)
                if closed is not each:
                    self._keep(closed)
                    if closing.gpu_uuid is not None:
                        about[closing.gpu_uuid] = None
                    yield ReplayLine(self.now_ms, "closed", closed)
        yield from self._judge(about)
        for node_id in nodes:
            yield from self._settle(node_id)

    def _merged(self, finding: Finding) -> Iterator[Output]:
        known = self._known_at(finding.gpu_uuid, finding.node_id)

        def elsewhere() -> Iterator[Evidence]:
            for uuid, gpu in self._gpus_on(finding.node_id):
                if uuid != finding.gpu_uuid:
                    yield from reversed(gpu.known.on(EVERYTHING))

        place = Place(
            known,
            elsewhere,
            self._windows.hold(finding.node_id, self.now_ms, is_drain=True),
            self._windows.hold(finding.node_id, finding.onset_ms),
            lambda: None if finding.gpu_uuid is None else diagnosed_ms_of(self._gpus[finding.gpu_uuid].case),
        )
        for noted in merge(finding, place, self.policy, self.now_ms, self._new_id):
            if noted.before is None or noted.before.sources != noted.evidence.sources:
                yield ReplayLine(self.now_ms, "new" if noted.is_new else "joined", noted.evidence)

    def _new_id(self) -> EvidenceId:
        self._num_evidence += 1
        return EvidenceId(f"ev_{self._num_evidence}")

    def _known_at(self, uuid: GpuUuid | None, node_id: NodeId) -> EvidenceIndex:
        return self._nodes[node_id].known if uuid is None else self._known(uuid, node_id).known

    def _keep(self, evidence: Evidence) -> None:
        self._known_at(evidence.gpu_uuid, evidence.node_id).put(evidence)

    def _settle(self, node_id: NodeId) -> Iterator[Output]:
        node = self._nodes[node_id]
        yield from self._together(node_id, node)
        changed = node.settle(self.policy, self.now_ms)
        yield from self._hold(node_id, node, changed)
        if any(is_open(each) for each in node.known.on(of_detector(gpus_at_fault.NAME))):
            again_ms = self.now_ms + int(self.policy.evidence.restate_s * 1000)
            node.evaluation_ms = min(node.evaluation_ms or again_ms, again_ms)
        if node.evaluation_ms is not None:
            heapq.heappush(self._evaluations, (node.evaluation_ms, _NO_GPU, node_id))

    def _hold(self, node_id: NodeId, node: ReplayedNode, changed: tuple[Evidence, ...] | None) -> Iterator[Output]:
        """Hold the node by its evidence if the breaker allows it. ``changed``: that evidence, where it is another."""
        if not node.cordoned_by:
            if node.cordoned_gpus is not None:
                self.breaker.end_hold(node.cordoned_gpus, len(self._gpus), self.policy, self.now_ms)
                node.cordoned_gpus = None
        elif node.cordoned_gpus is None:
            gpus = [uuid for uuid, gpu in self._gpus_on(node_id) if gpu.case.standing is not Standing.RETIRED]
            is_doubtful = any(each.threatens_correctness for each in node.cordoning())
            taking = Taking(node_id, tuple(gpus), Way.NODE_HOLD, is_doubtful)
            ruling = self.breaker.hold(taking, len(self._gpus), self.policy, self.now_ms)
            if ruling.incident is not None:
                yield Opened(self.now_ms, ruling.incident)
            if ruling.allowed:
                node.cordoned_gpus, changed = tuple(gpus), changed or node.cordoning()
        if changed is not None:
            yield RuleCordon(self.now_ms, node_id, changed, is_proposed=bool(changed) and node.cordoned_gpus is None)

    def _together(self, node_id: NodeId, node: ReplayedNode) -> Iterator[Output]:
        """Yield the outputs of the rule about faults of several of the node's GPUs."""
        condemning = [
            each
            for _, gpu in self._gpus_on(node_id)
            if gpu.case.standing is not Standing.RETIRED
            for each in condemning_of(gpu.case)
        ]
        told = node.known.on(of_detector(gpus_at_fault.NAME))
        for said in gpus_at_fault.news(node_id, condemning, told, self.policy, self.now_ms):
            if isinstance(said, Finding):
                yield from self._merged(said)
                continue
            for each in node.known.on(of_fault(said.fault_key)):
                closed = close(each, said)
                if closed is not each:
                    node.known.put(closed)
                    yield ReplayLine(self.now_ms, "closed", closed)

    def _judge(self, uuids: Iterable[GpuUuid]) -> Iterator[Output]:
        for uuid in uuids:
            gpu = self._gpus[uuid]
            for each in gpu.known.pending():
                gpu.known.put(outlasted(each, self.now_ms))
            gpu.case = replace(gpu.case, evidence=that_may_weigh(gpu.known, self.policy))
            for _ in range(MOVES_AT_ONCE):
                move = decide(gpu.case, self.now_ms, self.policy)
                if move is None:
                    gpu.proposed = None
                    break
                is_made = yield from self._rule(gpu, move)
                if not is_made:
                    break
            found = score_of(gpu.case, self.policy, self.now_ms)
            if found.value != gpu.score:
                gpu.score = found.value
                yield Scored(self.now_ms, uuid, found)
            gpu.evaluation_ms = next_evaluation_ms(gpu.case, self.now_ms, self.policy, found)
            if gpu.evaluation_ms is not None:
                heapq.heappush(self._evaluations, (gpu.evaluation_ms, uuid, gpu.memory.node_id))

    def _rule(self, gpu: _Gpu, move: Move) -> Generator[Output, None, bool]:
        """Apply the move if the breaker allows it, and return whether it did."""
        ruling = self.breaker.rule(move, len(self._gpus), self.policy, self.now_ms)
        if ruling.incident is not None:
            yield Opened(self.now_ms, ruling.incident)
        if move not in ruling.allowed:
            if gpu.proposed is not move.to_standing:
                yield Moved(self.now_ms, move, is_proposed=True)
            gpu.proposed = move.to_standing
            return False
        gpu.proposed = None
        gpu.case = moved(gpu.case, move)
        yield Moved(self.now_ms, move)
        return True
