"""The calls about indicators."""

from collections.abc import Sequence

from muster import documents
from muster.client.calls import Call, answered, listed, pages, read


class FigureCalls:
    @listed
    def indicators(self) -> Call[documents.FigureDefinition]:
        """List what each figure means, in the order of the indicators M1 to M15."""
        return pages("/v1/figures", documents.FigurePage, documents.FigureDefinition)

    @answered
    def indicator(
        self,
        name: str,
        *,
        since: str | None = None,
        until: str | None = None,
        step: str | None = None,
        by: str | None = None,
        percentile: Sequence[float] | None = None,
    ) -> Call[documents.Figure]:
        """One figure over time: ``step`` is hour or day, ``by`` is none, tenant, tier, class or site."""
        query = {"since": since, "until": until, "step": step, "by": by, "percentile": percentile}
        return read("/v1/figures/{name}", documents.Figure, {"name": name}, query=query)
