"""GPUs of an unused guarantee on which jobs of others run."""

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property

from sqlalchemy.orm import Session

from control.core.tenant_tree import tenancy
from control.fleet.inventory import facts_of
from health.standing.admission import AdmissionFacts, refusal_of
from muster.db.models import Quota as QuotaRow
from muster.db.queries.admission import FACTS_BY_KIND
from muster.db.queries.tenants import assigned_by_tier
from muster.domain.ids import TenantId
from muster.domain.policy.document import Policy
from muster.domain.times import to_ms
from scheduler.quota.firm_guarantees import used_within
from scheduler.quota.firm_tiers import is_firm
from scheduler.quota.tenancy import Tenancy


class Lent:
    """The fleet of one moment, read once for all quotas, and only if a guarantee has an unused part."""

    def __init__(self, session: Session, now: datetime, policy: Policy) -> None:
        self._session, self._now, self._policy = session, now, policy

    def of(self, row: QuotaRow, assigned: int) -> int:
        """Return the unused GPUs of the guarantee that no idle GPU meets, since jobs of others run beyond theirs.

        What the fleet has lost is not lent: no more counts than others have beyond their guarantees.
        """
        unused = row.guaranteed_gpus - assigned
        if unused <= 0 or row.tier not in self._policy.tiers:
            return 0
        return max(min(unused - self._idle(row.tier), self._beyond(row.tier)), 0)

    @cached_property
    def _kinds(self) -> list[tuple[AdmissionFacts, int]]:
        rows = self._session.execute(FACTS_BY_KIND, {"now": self._now})
        return [(facts_of(row, to_ms(self._now), self._policy.health), row.num_gpus) for row in rows]

    @cached_property
    def _in_use(self) -> tuple[Tenancy, Mapping[tuple[TenantId, str], int]]:
        return tenancy(self._session), assigned_by_tier(self._session)

    def _idle(self, tier: str) -> int:
        """Return the GPUs on which a job of the tier could start now."""
        rules = self._policy.tier(tier)
        return sum(num_gpus for facts, num_gpus in self._kinds if refusal_of(facts, rules) is None)

    def _beyond(self, tier: str) -> int:
        """Return the GPUs of all jobs that are in no guarantee which is met together with the tier's."""
        tree, in_use = self._in_use
        tiers = {one for one in self._policy.tiers if is_firm(self._policy, one)} | {tier}
        return sum(in_use.values()) - sum(used_within(tree, one, in_use) for one in sorted(tiers))
