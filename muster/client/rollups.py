"""The health and capacity of groups of GPUs: the call."""

from collections.abc import Sequence

from muster import documents
from muster.client.calls import Call, pages, walked


class RollupCalls:
    @walked
    def rollups(
        self,
        by: str,
        *,
        group: Sequence[str] | None = None,
        at: str | None = None,
        since: str | None = None,
        until: str | None = None,
        step: str | None = None,
        limit: int | None = None,
    ) -> Call[documents.Rollup]:
        """List groups of GPUs with health and capacity, the worst first: the newest, or as of ``at``.

        With ``since``, ``until`` or ``step`` (five_minutes, hour, day) the kept past, the oldest first. ``by``: node,
        rack, cohort, site, model, tenant or fleet. ``group``: keys or names.
        """
        where = {"by": by, "group": group, "at": at, "since": since, "until": until, "step": step}
        query = {**where, "limit": limit, "cursor": None}
        return pages("/v1/health/rollups", documents.RollupPage, documents.Rollup, query=query)
