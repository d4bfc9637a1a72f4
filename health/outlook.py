"""What would change a GPU's standing for the better, and when: the rules of ``standing``, told before they apply."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from health.gpu_case import GpuCase, condemning_of, weighed
from health.interventions import quarantining_move
from health.standing import clean_since_ms
from muster.domain.health_policy import DAY_S, HealthPolicy
from muster.domain.ids import EvidenceId
from muster.domain.states import Standing

_FORESEEN_MS: Final = int(400 * DAY_S * 1000)
_SECOND: Final = 1000


class By(StrEnum):
    BURN_IN = "burn_in"
    DISMISSAL = "dismissal"
    REPAIR = "repair"
    TIME = "time"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Way:
    """``at_ms``: when it comes by itself if nothing new is found; None where somebody must act, or nobody knows."""

    by: By
    to_standing: Standing
    words: str
    at_ms: int | None = None
    evidence_ids: tuple[EvidenceId, ...] = ()


def ways_of(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> tuple[Way, ...]:
    """The ways up from where ``gpu`` stands; none for a HEALTHY one."""
    match gpu.standing:
        case Standing.UNPROVEN:
            return (Way(By.BURN_IN, Standing.PROBATION, "a burn-in passes"),)
        case Standing.PROBATION:
            at_ms = clean_since_ms(gpu) + int(policy.standing.probation_s * 1000)
            return (Way(By.TIME, Standing.HEALTHY, "no finding of warning or worse until then", at_ms),)
        case Standing.SUSPECT:
            return (_raised(gpu, now_ms, policy),)
        case Standing.QUARANTINED:
            return _out_of_quarantine(gpu)
        case Standing.REPAIR:
            return (Way(By.REPAIR, Standing.UNPROVEN, "the repair is reported done; its burn-in follows"),)
        case Standing.RETIRED:
            return (Way(By.PERSON, Standing.UNPROVEN, "a person reinstates it"),)
        case _:
            return ()


def override_ends(standing: Standing, until_ms: int) -> Way:
    """Out of a person's standing that keeps a GPU back: to ``standing``, its own."""
    return Way(By.PERSON, standing, "its override is released, or ends by itself", until_ms)


def _raised(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Way:
    dwell_ms = int(policy.standing.raise_dwell_s * 1000)
    words = f"the score stays at {policy.score.raise_line:g} or more for {_span(policy.standing.raise_dwell_s)}"

    def is_raised(at_ms: int) -> bool:
        return weighed(gpu, policy, at_ms - dwell_ms).value >= policy.score.raise_line

    low = max(now_ms, gpu.since_ms + dwell_ms)
    high = low + _FORESEEN_MS
    target = gpu.origin or Standing.PROBATION
    if is_raised(low):
        return Way(By.TIME, target, words, low)
    if not is_raised(high):
        return Way(By.TIME, target, words)
    while high - low > _SECOND:
        middle = (low + high) // 2
        low, high = (low, middle) if is_raised(middle) else (middle, high)
    return Way(By.TIME, target, words, high)


def _out_of_quarantine(gpu: GpuCase) -> tuple[Way, ...]:
    ways = [
        Way(By.BURN_IN, Standing.PROBATION, "a burn-in that begins from now on passes"),
        Way(By.REPAIR, Standing.REPAIR, "a repair is started"),
    ]
    move = quarantining_move(gpu)
    cited = set() if move is None else set(move.evidence_ids)
    against = {each.id for each in condemning_of(gpu)} | {
        each.id for each in gpu.evidence if each.id in cited and not each.is_dismissed
    }
    if against:
        words = "a person dismisses all that speaks against it"
        target = gpu.origin or Standing.UNPROVEN
        ways.append(Way(By.DISMISSAL, target, words, evidence_ids=tuple(sorted(against))))
    return tuple(ways)


def _span(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
