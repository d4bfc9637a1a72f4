"""Suspect programs: a job is suspected rather than its GPUs where one symptom recurs on disjoint sets of GPUs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from muster.domain.ids import AttemptId, GpuUuid
from muster.domain.policy.document import SuspicionPolicy

LOOKBACK: Final = 16
"""Attempts that are compared with one another, the newest ones: sets are chosen out of them by trial."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """The end of one attempt of a job: each GPU-side symptom with the GPUs that showed it."""

    attempt_id: AttemptId
    ended_ms: int
    symptoms: Mapping[str, frozenset[GpuUuid]]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A suspicion. ``gpu_sets``: disjoint, one of each attempt in ``attempt_ids``, each in order."""

    symptom: str
    attempt_ids: tuple[AttemptId, ...]
    gpu_sets: tuple[tuple[GpuUuid, ...], ...]

    @property
    def gpu_uuids(self) -> tuple[GpuUuid, ...]:
        return tuple(sorted({uuid for each in self.gpu_sets for uuid in each}))


def suspicion_of(troubles: Iterable[FailedAttempt], policy: SuspicionPolicy, now_ms: int) -> Suspicion | None:
    """Return the first symptom, by name, that occurred on ``disjoint_sets`` disjoint sets of GPUs within the window.

    One broken GPU explains a symptom that recurs on it; only the program explains the same symptom on disjoint sets.
    """
    since_ms = now_ms - int(policy.window_s * 1000)
    recent = sorted((each for each in troubles if each.ended_ms >= since_ms), key=lambda each: each.ended_ms)
    for symptom in sorted({name for each in recent for name in each.symptoms}):
        shown = [each for each in recent if each.symptoms.get(symptom)][-LOOKBACK:]
        for chosen in combinations(shown, policy.disjoint_sets):
            if _are_disjoint([each.symptoms[symptom] for each in chosen]):
                gpu_sets = tuple(tuple(sorted(each.symptoms[symptom])) for each in chosen)
                return Suspicion(symptom, tuple(each.attempt_id for each in chosen), gpu_sets)
    return None


def _are_disjoint(gpu_sets: Sequence[frozenset[GpuUuid]]) -> bool:
    return len(frozenset().union(*gpu_sets)) == sum(len(each) for each in gpu_sets)
