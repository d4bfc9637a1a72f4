"""The control plane as a burn-in sees it: it gives orders, and takes reports."""

from typing import Protocol

from agents.exchange import Post, exchanged
from muster.wire.burn_in import BurnInAnswer, BurnInPoll, BurnInPollAnswer, BurnInReport


class BurnInServer(Protocol):
    """Calls to the server, each of which raises ``UnreachableError`` or ``Problem``."""

    def poll(self, request: BurnInPoll) -> BurnInPollAnswer: ...

    def report(self, burn_in_id: str, report: BurnInReport) -> BurnInAnswer: ...


class HttpBurnInServer:
    """The server over HTTP. ``post``: one request under the node's credential."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def poll(self, request: BurnInPoll) -> BurnInPollAnswer:
        return exchanged(self._post, "/v1/hosts/self/burn-ins/ask", request, BurnInPollAnswer)

    def report(self, burn_in_id: str, report: BurnInReport) -> BurnInAnswer:
        return exchanged(self._post, f"/v1/hosts/self/burn-ins/{burn_in_id}/report", report, BurnInAnswer)
