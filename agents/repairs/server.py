"""The control plane as a repair sees it: asks for an order, reports."""

from agents.exchange import Post, exchanged
from muster.wire.repair import RepairAnswer, RepairAsk, RepairAskAnswer, RepairReport


class HttpRepairServer:
    """``post``: one request under the node's credential."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def ask(self, request: RepairAsk) -> RepairAskAnswer:
        return exchanged(self._post, "/v1/hosts/self/repairs/ask", request, RepairAskAnswer)

    def report(self, repair_id: str, report: RepairReport) -> RepairAnswer:
        return exchanged(self._post, f"/v1/hosts/self/repairs/{repair_id}/report", report, RepairAnswer)
