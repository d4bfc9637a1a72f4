"""The policy and its versions, the audit trail, and the control plane's own figures: the calls."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from muster import documents
from muster.client.calls import Call, Within, answered, change, etag, listed, pages, post_query, read, walked


class PolicyCalls:
    @answered
    def policy(self) -> Call[documents.PolicyDetail]:
        """Return the active policy, with every default filled in."""
        return read("/v1/policy", documents.PolicyDetail)

    @walked
    def policies(self, *, limit: int | None = None, **within: Unpack[Within]) -> Call[documents.PolicyVersion]:
        """Every version, the newest first, without documents."""
        query = {"limit": limit, **within, "cursor": None}
        return pages("/v1/policies", documents.PolicyPage, documents.PolicyVersion, query=query)

    @answered
    def policy_version(self, version: int) -> Call[documents.PolicyDetail]:
        """One version with its document."""
        return read("/v1/policies/{version}", documents.PolicyDetail, {"version": str(version)})

    @answered
    def check_policy(self, document: Mapping[str, Any]) -> Call[documents.PolicyCheck]:
        """Check a document field by field, and return its differences from the active policy. Nothing is stored."""
        return post_query("/v1/policy/check", documents.PolicyCheck, body={"document": document})

    @answered
    def activate_policy(
        self,
        document: Mapping[str, Any],
        reason: str,
        *,
        version: int | None = None,
        despite_budget: str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
    ) -> Call[documents.ActivatedPolicy]:
        """Activate a new version at once. ``version``: only if that one is active now."""
        body: dict[str, Any] = {"document": document, "reason": reason}
        if despite_budget is not None:  # a server of the release before does not know it
            body["despite_budget"] = despite_budget
        if_match = etag(version)
        answer = documents.ActivatedPolicy
        return change(
            "POST", "/v1/policies", answer, body=body, dry_run=dry_run, if_match=if_match, key=idempotency_key
        )

    @listed
    def objectives(self) -> Call[documents.ObjectiveBudget]:
        """Objectives by class with their error budgets: burning ones first, then the least rest."""
        return pages("/v1/objectives", documents.ObjectiveBudgetPage, documents.ObjectiveBudget)

    @walked
    def audit_entries(
        self,
        *,
        actor: str | None = None,
        action: Sequence[str] | None = None,
        subject: str | None = None,
        tenant_id: str | None = None,
        limit: int | None = None,
        **within: Unpack[Within],
    ) -> Call[documents.AuditEntry]:
        """List changes with their actors, the newest first. ``subject``: the id of the changed object."""
        where = {"actor": actor, "action": action, "subject": subject, "tenant_id": tenant_id}
        query = {**where, "limit": limit, **within, "cursor": None}
        return pages("/v1/audit", documents.AuditPage, documents.AuditEntry, query=query)

    @answered
    def system(self) -> Call[documents.System]:
        """Heartbeats, ingest, scheduler, outbox, sequencer, sealer, judge, breakers, versions."""
        return read("/v1/system", documents.System)
