"""Conditions that would return a GPU to a tier's work: the smallest sets, the cheapest of them first.

Each set is tried by ``health.standing.what_if``, so by the very rules that judge the GPU: a set listed here does what
those rules would do. Sets are minimal: without any one of its conditions the GPU stays out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, combinations
from typing import Final

from health.evidence.state import counts
from health.scoring.score import weighing_as_one
from health.standing.admission import refusal_of
from health.standing.gpu_case import GpuCase, condemning_of, proofs_of, weighed
from health.standing.interventions import quarantining_move
from health.standing.proof_under_load import unproved
from health.standing.what_if import Condition, Kind, Situation, faults_that_stand, foreseen, without_the_past
from muster.domain.evidence.findings import Evidence
from muster.domain.policy.health import HealthPolicy
from muster.domain.policy.tiers import TierPolicy
from muster.domain.states import Contact, Standing

WAYS_MAX: Final = 4
"""Most sets that are shown for one tier."""
TRIED_ONE_BY_ONE: Final = 3
"""Most pieces of evidence with which every choice of dismissals is tried.

With more, all condemning evidence is tried, and then the heaviest."""
_HEAVIEST_MAX: Final = 8
"""The limit on groups of evidence that weigh as one."""
_RISING: Final = (Standing.PROBATION, Standing.SUSPECT)
"""The standings out of which time alone leads up."""
_COST: Final = {kind: cost for cost, kind in enumerate(Kind)}
_Conditions = tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class RecoveryPath:
    """Conditions that together bring the GPU back. Times are wall clock, milliseconds."""

    conditions: _Conditions

    @property
    def at_ms(self) -> int | None:
        """Return when all of them are fulfilled by themselves; None where a person must act, or the time is unknown."""
        times = [each.at_ms for each in self.conditions]
        known = [at_ms for at_ms in times if at_ms is not None]
        return max(known) if known and len(known) == len(times) else None


def recovery_paths(
    situation: Situation, tier: TierPolicy, now_ms: int, policy: HealthPolicy
) -> tuple[RecoveryPath, ...]:
    """Return the sets, the smallest first, then the cheapest to the operator.

    None where the GPU is admitted to ``tier`` now, and none where no foreseen condition brings it back.
    """
    if refusal_of(situation.facts, tier) is None:
        return ()
    situation = without_the_past(situation, now_ms, policy)
    needed = _needed(situation)

    first_looks: dict[_Conditions, Situation] = {}

    def evaluations(chosen: _Conditions) -> Iterator[tuple[int, Situation]]:
        return foreseen(situation, (*needed, *chosen), now_ms, policy)

    def at_once(chosen: _Conditions) -> Situation:
        if chosen not in first_looks:
            first_looks[chosen] = next(evaluations(chosen))[1]
        return first_looks[chosen]

    def is_back(found: Situation) -> bool:
        return refusal_of(found.facts, tier) is None

    def comes_ms(chosen: _Conditions) -> int | None:
        if at_once(chosen).gpu.standing not in _RISING:
            return None
        return next((at_ms for at_ms, found in evaluations(chosen) if is_back(found)), None)

    found = _minimal(
        _choices(situation, now_ms, policy),
        at_once=lambda chosen: is_back(at_once(chosen)),
        in_time=comes_ms,
    )
    ways = [RecoveryPath((*needed, *chosen)) for chosen in found]
    return tuple(sorted(ways, key=_order))


def _order(way: RecoveryPath) -> tuple[int, int, float]:
    cost = sum(_COST[each.kind] for each in way.conditions)
    return len(way.conditions), cost, float("inf") if way.at_ms is None else way.at_ms


def _minimal(
    choices: Sequence[_Conditions],
    *,
    at_once: Callable[[_Conditions], bool],
    in_time: Callable[[_Conditions], int | None],
) -> list[_Conditions]:
    """Return the choices, each with or without time to pass, of which no other found one is a part.

    The choices that need time are tried last: foreseeing costs the most, and a choice without time makes it needless.
    """
    found: list[_Conditions] = []
    for chosen, with_time in sorted(_with_and_without_time(choices), key=lambda each: len(each[0]) + each[1]):
        if len(found) == WAYS_MAX:
            break
        key = {each.key for each in chosen} | ({(Kind.TIME, None)} if with_time else set())
        if any(key.issuperset(each.key for each in other) for other in found):
            continue
        if not with_time:
            found += [chosen] if at_once(chosen) else []
        elif (at_ms := in_time(chosen)) is not None:
            found.append((*chosen, _time(at_ms)))
    return found


def _with_and_without_time(choices: Sequence[_Conditions]) -> Iterator[tuple[_Conditions, bool]]:
    return ((chosen, with_time) for chosen in choices for with_time in (False, True))


def _choices(situation: Situation, now_ms: int, policy: HealthPolicy) -> list[_Conditions]:
    switches = _switches(situation, policy)
    dismissals = list(_dismissals(situation.gpu, now_ms, policy))
    return [(*some, *dismissed) for some in _subsets(switches) for dismissed in dismissals]


def _needed(situation: Situation) -> _Conditions:
    """Return the conditions that no other condition replaces."""
    needed = [
        Condition(Kind.CORDON, f"its cordon is released: {each.reason}", each.until_ms, each.id)
        for each in situation.cordons
    ]
    if situation.contact is not Contact.LIVE:
        needed.append(Condition(Kind.CONTACT, "its node is in contact again"))
    if situation.is_mig_enabled:
        needed.append(Condition(Kind.MIG, "MIG mode is turned off"))
    return tuple(sorted(needed, key=lambda each: _COST[each.kind]))


def _switches(situation: Situation, policy: HealthPolicy) -> _Conditions:
    gpu, override = situation.gpu, situation.override
    load = "; ".join(dict.fromkeys(each.summary for each in unproved(gpu, policy)))
    shown = f", since this shows under load alone: {load}" if load else ""
    words = f"a burn-in that begins from now on passes{shown}"
    if situation.is_burning_in:
        what = "more of what shows under load alone" if load else "condemning"
        words = f"its burn-in passes, if nothing {what} was found since it began, else one that begins from now on"
    found = [Condition(Kind.BURN_IN, words)]
    if override is not None:
        ends = f"the standing {override.standing} that a person has set is released, or ends"
        found.append(Condition(Kind.OVERRIDE, ends, override.until_ms, override.id))
    lasting = "; ".join(each.summary for each in faults_that_stand(gpu, policy))
    if gpu.standing is Standing.REPAIR:
        still = f", and its agent no longer reports: {lasting}" if lasting else ""
        found.append(Condition(Kind.REPAIR, f"its repair is reported done{still}"))
    elif lasting:
        found.append(Condition(Kind.REPAIR, f"it is repaired, so that its agent no longer reports: {lasting}"))
    if gpu.standing is Standing.RETIRED:
        found.append(Condition(Kind.REINSTATEMENT, "a person reinstates it"))
    return tuple(found)


def _dismissals(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Iterator[_Conditions]:
    """Yield the dismissals that a person might make, the fewest first."""
    against, groups = _against(gpu, now_ms, policy)
    every = (*against, *chain.from_iterable(groups))
    if len(every) <= TRIED_ONE_BY_ONE:
        yield from _subsets(tuple(map(_dismissal, every)))
        return
    sizes = accumulate(map(len, groups[:_HEAVIEST_MAX]), initial=len(against))
    for size in dict.fromkeys((0, *sizes)):
        yield tuple(map(_dismissal, every[:size]))


def _against(
    gpu: GpuCase, now_ms: int, policy: HealthPolicy
) -> tuple[list[Evidence], tuple[tuple[Evidence, ...], ...]]:
    """Return the evidence that keeps the GPU out by itself, and the rest.

    The former condemns, was cited by the quarantine, or stands. The rest that weighs is in groups, the heaviest first:
    in a group that weighs once, such as a burst, the next weighs once the heaviest is dismissed, so that only the
    dismissal of the whole group helps.
    """
    quarantined = quarantining_move(gpu) if gpu.standing is Standing.QUARANTINED else None
    cited = set() if quarantined is None else set(quarantined.evidence_ids)
    itself = {each.id for each in (*condemning_of(gpu), *faults_that_stand(gpu, policy))} | cited
    shares = dict(weighed(gpu, policy, now_ms).shares)
    # Suspended evidence weighs nothing, but the quarantine that it caused lasts until a person dismisses it.
    dismissible = (each for each in gpu.evidence if counts(each) or (each.id in cited and not each.is_dismissed))
    live = sorted(dismissible, key=lambda each: -shares.get(each.id, 0.0))
    against = [each for each in live if each.id in itself]
    groups = weighing_as_one(gpu.evidence, policy, now_ms, proofs_of(gpu))
    others = (tuple(each for each in group if each.id not in itself) for group in groups)
    return against, tuple(filter(None, others))


def _dismissal(evidence: Evidence) -> Condition:
    return Condition(Kind.DISMISSAL, f"a person dismisses: {evidence.summary}", subject_id=evidence.id)


def _time(at_ms: int) -> Condition:
    return Condition(Kind.TIME, "nothing of warning or worse is found until then", at_ms)


def _subsets(conditions: _Conditions) -> Iterator[_Conditions]:
    return chain.from_iterable(combinations(conditions, size) for size in range(len(conditions) + 1))
