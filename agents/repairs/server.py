"""The control plane as a repair sees it: it gives an order, and takes a report."""

from agents.exchange import Post, exchanged
from muster.wire.repair import RepairAnswer, RepairPoll, RepairPollAnswer, RepairReport


class HttpRepairServer:
    """The server over HTTP. ``post``: one request under the node's credential."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def poll(self, request: RepairPoll) -> RepairPollAnswer:
        return exchanged(self._post, "/v1/hosts/self/repairs/ask", request, RepairPollAnswer)

    def report(self, repair_id: str, report: RepairReport) -> RepairAnswer:
        return exchanged(self._post, f"/v1/hosts/self/repairs/{repair_id}/report", report, RepairAnswer)
