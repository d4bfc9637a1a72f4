"""The quality of detection rules: a fleet's weeks judged and compared with the truth."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

from health.replay.replay import Replay
from health.replay.stream import Moved, Passed, ReplayLine
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import BreakerPolicy, HealthPolicy
from muster.domain.states import Standing
from simulator.quality.fault_stream import Injected, Stream, stream_of
from simulator.quality.user_programs import DAY_MS

START_MS: Final = 1_790_000_000_000
_NO_BREAKER: Final = BreakerPolicy(
    fleet_window_share=1.0, fleet_share=1.0, rack_share=1.0, cohort_share=1.0, tenant_share=1.0
)


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality for one seed.

    ``found_s``: for each fault that was found, seconds from its onset; ``missed``: the others. ``wrongly_out`` and
    ``wrongly_suspect``: GPUs without a fault that the rules would quarantine, or made SUSPECT; the circuit breaker,
    which would hide this, is disabled. ``counted_twice``: faults with more than one evidence, though each occurred
    once; restarted agents report them again.
    """

    num_inputs: int
    found_s: tuple[float, ...]
    missed: tuple[Injected, ...]
    counted_twice: tuple[Injected, ...]
    wrongly_out: frozenset[GpuUuid]
    wrongly_suspect: frozenset[GpuUuid]

    @property
    def median_s(self) -> float:
        return median(self.found_s) if self.found_s else float("inf")


def quality_of(seed: int, num_nodes: int, num_days: float, policy: HealthPolicy) -> Quality:
    stream = stream_of(seed, num_nodes, num_days, START_MS)
    world = Replay(policy.model_copy(update={"breaker": _NO_BREAKER}))
    told: dict[NodeId, list[tuple[int, GpuUuid | None, str]]] = {}
    out, suspect = set[GpuUuid](), set[GpuUuid]()
    for output in _outputs(world, stream, START_MS + int(num_days * DAY_MS) + DAY_MS):
        if isinstance(output, ReplayLine) and output.what == "new":
            evidence = output.evidence
            told.setdefault(evidence.node_id, []).append((output.at_ms, evidence.gpu_uuid, evidence.fault_key))
        elif isinstance(output, Moved) and output.move.to_standing is Standing.QUARANTINED:
            out.add(output.move.gpu_uuid)
        elif isinstance(output, Moved) and output.move.to_standing is Standing.SUSPECT:
            suspect.add(output.move.gpu_uuid)
    faulty = {each.gpu_uuid for each in stream.injected if not each.fault.is_of_node}
    found = [(each, _found_ms(each, told.get(each.node_id, []))) for each in stream.injected]
    numbers = [(each, len(_evidence_of(each, told.get(each.node_id, [])))) for each in stream.injected]
    return Quality(
        num_inputs=len(stream.arrivals),
        found_s=tuple((at_ms - each.at_ms) / 1000 for each, at_ms in found if at_ms is not None),
        missed=tuple(each for each, at_ms in found if at_ms is None),
        counted_twice=tuple(each for each, number in numbers if number > 1),
        wrongly_out=frozenset(out - faulty),
        wrongly_suspect=frozenset(suspect - faulty),
    )


def _outputs(world: Replay, stream: Stream, until_ms: int) -> Iterator[object]:
    for at_ms, given in stream.arrivals:
        yield from world.take(Passed(at_ms))
        yield from world.take(given)
    yield from world.take(Passed(until_ms))


def _found_ms(injected: Injected, reported: list[tuple[int, GpuUuid | None, str]]) -> int | None:
    """Return when the first evidence of the fault appeared, or None."""
    return min(_evidence_of(injected, reported), default=None)


def _evidence_of(injected: Injected, reported: list[tuple[int, GpuUuid | None, str]]) -> list[int]:
    """Return the times at which evidence of the fault, about its GPU or its node, appeared."""
    about = None if injected.fault.is_of_node else injected.gpu_uuid
    return [
        at_ms
        for at_ms, gpu_uuid, key in reported
        if at_ms >= injected.at_ms and gpu_uuid == about and key.startswith(injected.fault.found_as)
    ]
