"""Rate cards, costs, budgets and statements: the calls."""

from collections.abc import Mapping
from typing import Any, Unpack

from muster.client.calls import Call, Within, answered, change, pages, read, walked
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
        """Set the rate cards, whole. ``corrects_past``: also where prices of hours change that have begun."""
        body = {"document": document, "reason": reason, "corrects_past": corrects_past}
        return change("POST", "/v1/rates", documents.ChangedRates, body=body, dry_run=dry_run, key=idempotency_key)

    @answered
    def job_cost(self, job_id: str) -> Call[documents.JobCost]:
        """Return what a job has cost until now."""
        return read("/v1/jobs/{job_id}/cost", documents.JobCost, {"job_id": job_id})
