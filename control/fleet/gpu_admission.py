"""Admission of one GPU: which tiers take it, why the others do not, and the conditions of its return to them."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from control.fleet.read import GpuView
from health.standing.admission import Refusal, refusals_of, text_of
from health.standing.counterfactual import RecoveryPath, recovery_paths
from health.standing.gpu_case import GpuCase
from health.standing.standing import is_reclaimable_only
from health.standing.what_if import Cordon, SetStanding, Situation
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import Policy
from muster.domain.policy.health import HealthPolicy
from muster.domain.policy.tiers import TierPolicy
from muster.domain.times import to_ms

_MINUTE_MS: Final = 60_000
_KEPT_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Refused:
    reason: Refusal
    text: str


@dataclass(frozen=True, slots=True)
class TierAdmission:
    """Admission to one tier. ``refusals``: why the tier does not take it now; empty where it does.

    ``ways``: conditions of its return; empty where only its running work keeps it from the tier.
    """

    tier: str
    refusals: Sequence[Refused]
    ways: Sequence[RecoveryPath]

    @property
    def is_admitted(self) -> bool:
        """True if the tier would take it if it were free: running work is no fault of the GPU."""
        return all(each.reason is Refusal.ASSIGNED for each in self.refusals)


class FoundWays:
    """Results for the GPUs that were read last, by tiers' standings.

    A page reads them every ten seconds, and a faulty GPU with much evidence costs a tenth of a second. A result is
    reused where all its inputs are equal, and the time to the minute.
    """

    def __init__(self) -> None:
        self._by_gpu: OrderedDict[GpuUuid, tuple[object, dict[tuple[str, ...], tuple[RecoveryPath, ...]]]] = (
            OrderedDict()
        )

    def ways(self, situation: Situation, tier: TierPolicy, now_ms: int, policy: Policy) -> tuple[RecoveryPath, ...]:
        uuid = situation.gpu.gpu_uuid
        follows_from = (situation, policy.health, now_ms // _MINUTE_MS)
        before, by_standings = self._by_gpu.get(uuid, (None, {}))
        if before != follows_from:
            by_standings = {}
        if tier.standings not in by_standings:
            by_standings[tier.standings] = recovery_paths(situation, tier, now_ms, policy.health)
        self._by_gpu[uuid] = (follows_from, by_standings)
        if len(self._by_gpu) > _KEPT_MAX:
            self._by_gpu.popitem(last=False)
        return by_standings[tier.standings]


_FOUND: Final = FoundWays()


def admission_of(found: GpuView, case: GpuCase, policy: Policy, now_ms: int) -> list[TierAdmission]:
    """Return the admission to each tier of ``policy``, the highest priority first."""
    situation = situation_of(found, case, now_ms, policy.health)
    facts = replace(situation.facts, is_assigned=found.holder is not None, is_reported=found.is_reported)
    admissions = []
    for name, tier in sorted(policy.tiers.items(), key=lambda item: (-item[1].priority, item[0])):
        ways = _FOUND.ways(situation, tier, now_ms, policy)
        refused = [Refused(reason, text_of(reason, facts, tier)) for reason in refusals_of(facts, tier)]
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


def by_ways(admissions: Sequence[TierAdmission]) -> Mapping[tuple[RecoveryPath, ...], list[str]]:
    """Return the tiers that do not admit it, grouped by equal conditions of return, in order."""
    found: dict[tuple[RecoveryPath, ...], list[str]] = {}
    for each in admissions:
        if each.ways:
            found.setdefault(tuple(each.ways), []).append(each.tier)
    return found
