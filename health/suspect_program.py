"""Whether a program is to be suspected rather than the GPUs it ran on: one symptom, again and again, somewhere else."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from muster.domain.ids import AttemptId, GpuUuid
from muster.domain.policy.document import SuspicionPolicy

LOOKS_BACK: Final = 16
"""Attempts that are compared with one another, the newest ones: sets are chosen out of them by trial."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """How one attempt of a job ended: each GPU-side symptom with the GPUs that showed it."""

    attempt_id: AttemptId
    ended_ms: int
    symptoms: Mapping[str, frozenset[GpuUuid]]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """``gpu_sets``: disjoint, one of each attempt in ``attempt_ids``, each in order."""

    symptom: str
    attempt_ids: tuple[AttemptId, ...]
    gpu_sets: tuple[tuple[GpuUuid, ...], ...]

    @property
    def gpu_uuids(self) -> tuple[GpuUuid, ...]:
        return tuple(sorted({uuid for each in self.gpu_sets for uuid in each}))


def suspicion_of(troubles: Iterable[Trouble], policy: SuspicionPolicy, now_ms: int) -> Suspicion | None:
    """The first symptom, by name, that came on ``disjoint_sets`` sets of GPUs without one in common, within the window.

    One broken GPU explains what comes on it again; nothing but the program explains the same on GPUs that have
    nothing in common.
    """
    since_ms = now_ms - int(policy.window_s * 1000)
    recent = sorted((each for each in troubles if each.ended_ms >= since_ms), key=lambda each: each.ended_ms)
    for symptom in sorted({name for each in recent for name in each.symptoms}):
        shown = [each for each in recent if each.symptoms.get(symptom)][-LOOKS_BACK:]
        for chosen in combinations(shown, policy.disjoint_sets):
            if _are_disjoint([each.symptoms[symptom] for each in chosen]):
                gpu_sets = tuple(tuple(sorted(each.symptoms[symptom])) for each in chosen)
                return Suspicion(symptom, tuple(each.attempt_id for each in chosen), gpu_sets)
    return None


def _are_disjoint(gpu_sets: Sequence[frozenset[GpuUuid]]) -> bool:
    return len(frozenset().union(*gpu_sets)) == sum(len(each) for each in gpu_sets)
