"""The judgement's memory of a GPU between samples in compact form: four counters for a healthy GPU.

So it fits next to the latest state of every GPU, and most samples cost a few comparisons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from health.detectors.detector import NO_OWN_HEAT, Closing, OwnHeat
from health.detectors.load import clock_events, heat
from health.detectors.memory import row_remap
from health.detectors.registry import WATCHED, GpuMemory, closings_between, judge_sample
from muster.domain.evidence.findings import Finding, GpuSample
from muster.domain.gpu.metrics import INDEX, NUM_METRICS
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy

Watched = tuple[float | None, float | None, float | None, float | None]
"""The counters of ``WATCHED``, each as it was last known."""
UNKNOWN: Final[Watched] = (None, None, None, None)

_FIRST, _SECOND, _THIRD, _FOURTH = WATCHED
_REASONS: Final = INDEX["clock_event_reasons"]
_ACTION: Final = INDEX["recovery_action"]


@dataclass(frozen=True, slots=True)
class Past:
    """Compact memory of a GPU.

    ``watched`` carries counters over polls that failed; the others are as in ``GpuMemory``.
    """

    watched: Watched = UNKNOWN
    clock_windows: clock_events.Windows = clock_events.NO_WINDOWS
    stated_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_counters_alone(self) -> bool:
        return not self.stated_ms and self.clock_windows == clock_events.NO_WINDOWS


def watched_in(values: Sequence[float | None]) -> Watched:
    return values[_FIRST], values[_SECOND], values[_THIRD], values[_FOURTH]


relevant_readings: Final = itemgetter(*WATCHED, _ACTION, row_remap.PENDING_READING, row_remap.FAILURE_READING, _REASONS)
"""All of a sample that ``is_quiet`` reads except heat. A GPU that was quiet is quiet again if these are unchanged, and
it is not hot.
"""


@dataclass(frozen=True, slots=True)
class PastCheck:
    """Limits of a policy for the quick check: computed once for each policy, used for every sample."""

    rows_max: float
    heat: heat.Limits


def past_check_of(policy: HealthPolicy) -> PastCheck:
    return PastCheck(policy.row_remap.uncorrected_rows_max, heat.strictest(policy))


def is_quiet(watched: Watched, values: Sequence[float | None], check: PastCheck) -> bool:
    """Return whether these values show no fault and no change, for a GPU of which only counters are remembered.

    Much quicker than ``judged``, and never true where ``judged`` would find anything.
    """
    rows = values[_THIRD]
    return (
        (values[_FIRST], values[_SECOND], rows, values[_FOURTH]) == watched
        and not values[_ACTION]
        and not values[row_remap.PENDING_READING]
        and not values[row_remap.FAILURE_READING]
        and not int(values[_REASONS] or 0) & clock_events.HARMFUL
        and (rows is None or rows < check.rows_max)
        and not heat.is_hot(values, check.heat)
    )


def judged(
    past: Past,
    node_id: NodeId,
    sample: GpuSample,
    policy: HealthPolicy,
    now_ms: int,
    model: str = "",
    own_heat: OwnHeat = NO_OWN_HEAT,
) -> tuple[Past, tuple[Finding | Closing, ...]]:
    """Return the memory after a sample, with its findings and the closings of faults that it shows to be over.

    The caller gives each GPU's samples once, in the order in which they were taken. ``model``, ``own_heat``: where they
    are known.
    """
    previous = _sample_with(past.watched, sample.gpu_uuid)
    before = GpuMemory(node_id, previous, past.clock_windows, past.stated_ms, model=model, own_heat=own_heat)
    after, findings = judge_sample(before, sample, policy, now_ms)
    watched = past.watched if after.previous is None else watched_in(after.previous.values)
    return (
        Past(watched, after.clock_windows, after.stated_ms),
        (*findings, *closings_between(before, after, sample)),
    )


def _sample_with(watched: Watched, gpu_uuid: GpuUuid) -> GpuSample:
    values: list[float | None] = [None] * NUM_METRICS
    for at, value in zip(WATCHED, watched, strict=True):
        values[at] = value
    return GpuSample(gpu_uuid, 0, tuple(values))
