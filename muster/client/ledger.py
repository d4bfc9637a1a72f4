"""The ledger of GPU time: the calls."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

from muster import documents
from muster.client.calls import Call, answered, pages, read, walked


class LedgerConditions(TypedDict, total=False):
    """Conditions on GPU time. ``account``: any of these. ``gpu``: a UUID."""

    account: Sequence[str] | None
    cause: str | None
    tenant_id: str | None
    tier: str | None
    job_class: str | None
    model: str | None
    cohort_key: str | None
    rack: str | None
    site: str | None
    node_id: str | None
    job_id: str | None
    attempt_id: str | None
    gpu: str | None


class LedgerCalls:
    @answered
    def ledger(
        self,
        *,
        group: Sequence[str] | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        **where: Unpack[LedgerConditions],
    ) -> Call[documents.LedgerSums]:
        """Sum up GPU time by ``group``: account, cause, tenant, tier, class, model, cohort, rack, site, hour, day,
        node, job or attempt, up to four of them. By default by account. ``since``, ``until``: of the beginnings of
        hours (RFC 3339); by default the last 24 that are over.
        """
        query = {**where, "group": group, "since": since, "until": until, "limit": limit}
        return read("/v1/ledger", documents.LedgerSums, query=query)

    @walked
    def ledger_entries(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        order: str | None = None,
        limit: int | None = None,
        **where: Unpack[LedgerConditions],
    ) -> Call[documents.LedgerEntry]:
        """List entries of the ledger, the newest hours first, with the evidence of each loss."""
        query = {**where, "since": since, "until": until, "order": order, "limit": limit, "cursor": None}
        return pages("/v1/ledger/entries", documents.LedgerEntryPage, documents.LedgerEntry, query=query)

    @walked
    def ledger_hours(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        order: str | None = None,
        limit: int | None = None,
    ) -> Call[documents.LedgerHour]:
        """List the hours of the ledger, the newest first: whether each is closed, and what it awaits."""
        query = {"since": since, "until": until, "order": order, "limit": limit, "cursor": None}
        return pages("/v1/ledger/hours", documents.LedgerHourPage, documents.LedgerHour, query=query)

    @answered
    def ledger_recount(
        self, *, since: str | None = None, until: str | None = None, gpu: str | None = None, limit: int | None = None
    ) -> Call[documents.LedgerRecount]:
        """Recount hours of the ledger from events, of all GPUs or of one (a UUID), and return where it differs.

        ``since``, ``until``: of the beginnings of hours (RFC 3339), 31 days at most; by default the last 24 that are
        over. ``limit``: how many differences are returned.
        """
        query = {"since": since, "until": until, "gpu": gpu, "limit": limit}
        return read("/v1/ledger/recount", documents.LedgerRecount, query=query)
