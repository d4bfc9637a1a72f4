"""A scenario whose parts agree with each other, under the policy that it states."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from muster.domain.errors import FieldFault, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.validation import validated
from scheduler.quota.tenancy import Member, Tenancy
from scheduler.quota.tenancy import Quota as TenantQuota
from simulator.scenarios.consistency import Disagreement, disagreements
from simulator.scenarios.fleet_form import Quota
from simulator.scenarios.form import Happening, Place, ScenarioForm


class Scenario(ScenarioForm):
    """A scenario as a file states it: ``validated`` reports all faults of one."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Raise all disagreements at once, each at its place."""
        try:
            found = list(disagreements(self, self.rules))
        except ValidationFailedError as refused:
            found = [Disagreement(self._place_of(fault), fault.detail) for fault in refused.faults]
        if found:
            raise ValidationError.from_exception_data("Scenario", [_error_of(one) for one in found])
        return self

    @property
    def rules(self) -> Policy:
        """Return the built-in policy with the topology's levels, under what it overrides.

        Raises ValidationFailedError: that makes no policy.
        """
        leaf = self.topology.levels[-1] if self.topology.levels else None
        own = {"placement": {"levels": self.topology.levels, "leaf_level": leaf}}
        base = _merged(DEFAULT_POLICY.model_dump(mode="json"), own)
        return validated(Policy, _merged(base, self.policy))

    def _place_of(self, fault: FieldFault) -> Place:
        """Return the place in this document of a fault of the policy."""
        parts = [part for part in fault.pointer.split("/") if part]
        own = self.policy.get("placement")
        says_levels = isinstance(own, Mapping) and "levels" in own
        if parts == ["placement"] and fault.detail.startswith("levels ") and not says_levels:
            return ("topology", "levels")
        return ("policy", *parts)

    @property
    def tenancy(self) -> Tenancy:
        return Tenancy(
            {
                TenantId(one.name): Member(None if one.parent is None else TenantId(one.parent), one.weight)
                for one in self.tenants
            },
            {
                (TenantId(one.tenant), one.tier): TenantQuota(
                    one.guaranteed_gpus, one.borrowable_gpus, one.ceiling_gpus
                )
                for one in self.all_quotas
            },
            {(TenantId(one.name), tier): used for one in self.tenants for tier, used in one.used_gpus.items()},
        )

    @property
    def all_quotas(self) -> tuple[Quota, ...]:
        own = [
            Quota(tenant=one.name, tier=tier, **dict(said)) for one in self.tenants for tier, said in one.quota.items()
        ]
        return (*self.quotas, *own)

    @property
    def happenings(self) -> tuple[Happening, ...]:
        """Return the events in the order of time, faults before requests of the same second."""
        return tuple(one for _, one in self.placed_happenings)


def _error_of(one: Disagreement) -> InitErrorDetails:
    """Return an error of a kind of its own: ``validated`` treats only a part's own errors again."""
    words = PydanticCustomError("disagreement", "{words}", {"words": one.words})
    return InitErrorDetails(type=words, loc=one.place, input=None)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(base[key], value) if isinstance(value, Mapping) and isinstance(base.get(key), Mapping) else value
        for key, value in over.items()
    }
    return {**base, **both}


DecisionKind = Literal[
    "placed",
    "planned",
    "waits",
    "held",
    "reclaim",
    "withdrawn",
    "shrunk",
    "grown",
    "notice",
    "ended",
    "stopped",
    "interrupted",
]
