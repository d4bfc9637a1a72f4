"""Which tiers one GPU is admitted to, why not to the others, and what would bring it back to them."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from health.standing.admission import Refusal, refusals_of, words_of
from health.standing.counterfactual import WayBack, ways_back
from health.standing.gpu_case import GpuCase
from health.standing.standing import is_reclaimable_only
from health.standing.what_if import Cordon, SetStanding, Situation
from muster.db.queries.gpu_documents import GpuView
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import Policy, TierPolicy
from muster.domain.policy.health import HealthPolicy
from muster.domain.times import to_ms

_MINUTE_MS: Final = 60_000
_KEPT_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Refused:
    reason: Refusal
    words: str


@dataclass(frozen=True, slots=True)
class TierAdmission:
    """``refusals``: why the tier does not take it now, none where it does. ``ways``: what would bring it back; none
    where nothing keeps it back but the work that it does.
    """

    tier: str
    refusals: Sequence[Refused]
    ways: Sequence[WayBack]

    @property
    def is_admitted(self) -> bool:
        """Whether the tier takes it, were it free: to work is no fault of it."""
        return all(each.reason is Refusal.HELD for each in self.refusals)


class FoundWays:
    """What was found of the GPUs that were asked about last, by tiers' standings: a page asks every ten seconds, and a
    sick GPU with much evidence costs a tenth of a second. Whatever it follows from is compared, and time to the minute.
    """

    def __init__(self) -> None:
        self._by_gpu: OrderedDict[GpuUuid, tuple[object, dict[tuple[str, ...], tuple[WayBack, ...]]]] = OrderedDict()

    def ways(self, situation: Situation, tier: TierPolicy, now_ms: int, policy: Policy) -> tuple[WayBack, ...]:
        uuid = situation.gpu.gpu_uuid
        follows_from = (situation, policy.health, now_ms // _MINUTE_MS)
        before, by_standings = self._by_gpu.get(uuid, (None, {}))
        if before != follows_from:
            by_standings = {}
        if tier.standings not in by_standings:
            by_standings[tier.standings] = ways_back(situation, tier, now_ms, policy.health)
        self._by_gpu[uuid] = (follows_from, by_standings)
        if len(self._by_gpu) > _KEPT_MAX:
            self._by_gpu.popitem(last=False)
        return by_standings[tier.standings]


_FOUND: Final = FoundWays()


def admission_of(found: GpuView, case: GpuCase, policy: Policy, now_ms: int) -> list[TierAdmission]:
    """To each tier of ``policy``, the highest priority first."""
    situation = situation_of(found, case, now_ms, policy.health)
    facts = replace(situation.facts, is_held=found.holder is not None, is_reported=found.is_reported)
    admissions = []
    for name, tier in sorted(policy.tiers.items(), key=lambda item: (-item[1].priority, item[0])):
        ways = _FOUND.ways(situation, tier, now_ms, policy)
        refused = [Refused(reason, words_of(reason, facts, tier)) for reason in refusals_of(facts, tier)]
        admissions.append(TierAdmission(name, refused, ways))
    return admissions


def situation_of(found: GpuView, case: GpuCase, now_ms: int, policy: HealthPolicy) -> Situation:
    override = found.overrides[0] if found.overrides else None
    return Situation(
        case,
        contact=found.node.contact,
        cordons=tuple(
            Cordon(each.id, each.reason, None if each.until is None else to_ms(each.until)) for each in found.cordons
        ),
        override=None if override is None else SetStanding(override.id, override.standing, to_ms(override.until)),
        is_mig_enabled=found.gpu.is_mig_enabled,
        is_burning_in=found.is_burning_in,
        is_reclaimable_only=is_reclaimable_only(case.standing, case.since_ms, now_ms, policy),
    )


def by_ways(admissions: Sequence[TierAdmission]) -> Mapping[tuple[WayBack, ...], list[str]]:
    """The tiers that are not admitted, those with the same ways back together, in order."""
    found: dict[tuple[WayBack, ...], list[str]] = {}
    for each in admissions:
        if each.ways:
            found.setdefault(tuple(each.ways), []).append(each.tier)
    return found
