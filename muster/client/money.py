"""Rate cards, costs, budgets and statements: the calls."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from muster.client.calls import Call, Within, answered, change, listed, pages, read, walked
from muster.documents import money as documents


class MoneyCalls:
    @answered
    def rates(self) -> Call[documents.Rates]:
        """Return the rate cards in force."""
        return read("/v1/rates", documents.Rates)

    @walked
    def rate_versions(self, *, limit: int | None = None, **within: Unpack[Within]) -> Call[documents.RateVersion]:
        """Every version of the rate cards, the newest first, without documents."""
        query = {"limit": limit, **within, "cursor": None}
        return pages("/v1/rate-versions", documents.RateVersionPage, documents.RateVersion, query=query)

    @answered
    def rate_version(self, version: int) -> Call[documents.Rates]:
        """One version with its document."""
        return read("/v1/rate-versions/{version}", documents.Rates, {"version": str(version)})

    @answered
    def set_rates(
        self,
        document: Mapping[str, Any],
        reason: str,
        *,
        corrects_past: bool = False,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> Call[documents.ChangedRates]:
        """Set the rate cards, whole. ``corrects_past``: also where bills of hours change that have begun."""
        body = {"document": document, "reason": reason, "corrects_past": corrects_past}
        return change("POST", "/v1/rates", documents.ChangedRates, body=body, dry_run=dry_run, key=idempotency_key)

    @answered
    def job_cost(self, job_id: str) -> Call[documents.JobCost]:
        """Return what a job has cost until now."""
        return read("/v1/jobs/{job_id}/cost", documents.JobCost, {"job_id": job_id})

    @answered
    def compare_jobs(self, job: Sequence[str]) -> Call[documents.JobComparison]:
        """Return at most 20 jobs side by side: speed, use of their GPUs, cost, and tokens for a unit of money."""
        return read("/v1/job-comparisons", documents.JobComparison, query={"job": list(job)})

    @answered
    def tenant_budget(self, tenant_id: str) -> Call[documents.TenantBudget]:
        """Return a tenant's budget and what is spent of it."""
        return read("/v1/tenants/{tenant_id}/budget", documents.TenantBudget, {"tenant_id": tenant_id})

    @answered
    def set_tenant_budget(
        self,
        tenant_id: str,
        amount: str,
        reason: str,
        *,
        action: str = "notify",
        shares: Sequence[int] = (50, 80, 100),
        begins_at: str | None = None,
        ends_at: str | None = None,
        dry_run: bool = False,
    ) -> Call[documents.ChangedTenantBudget]:
        """Set the budget of a tenant with all below it, in place of the one before."""
        when = {"begins_at": begins_at, "ends_at": ends_at}
        body = {"amount": amount, "reason": reason, "action": action, "shares": list(shares), **when}
        path, values = "/v1/tenants/{tenant_id}/budget", {"tenant_id": tenant_id}
        return change("PUT", path, documents.ChangedTenantBudget, values, body=body, dry_run=dry_run)

    @answered
    def lift_tenant_budget(self, tenant_id: str, reason: str, *, dry_run: bool = False) -> Call[documents.LiftedBudget]:
        """End a tenant's budget: it refuses and stops nothing more."""
        path, values = "/v1/tenants/{tenant_id}/budget/lift", {"tenant_id": tenant_id}
        return change("POST", path, documents.LiftedBudget, values, body={"reason": reason}, dry_run=dry_run)

    @answered
    def statement(self, month: str, *, tenant_id: str | None = None) -> Call[documents.Statement]:
        """Return the statement of a month such as 2026-11; of one tenant, or of all that this key sees."""
        query = {"tenant_id": tenant_id}
        return read("/v1/statements/{month}", documents.Statement, {"month": month}, query=query)

    @answered
    def signed_statement(self, month: str, *, tenant_id: str | None = None) -> Call[documents.SignedStatement]:
        """Return the statement of a month with the signature of the operator's key."""
        query = {"tenant_id": tenant_id}
        return read("/v1/statements/{month}/signed", documents.SignedStatement, {"month": month}, query=query)

    @listed
    def bill_keys(self) -> Call[documents.BillKey]:
        """List the public keys of bills, the one that signs new bills first."""
        return pages("/v1/bill-keys", documents.BillKeyPage, documents.BillKey)
