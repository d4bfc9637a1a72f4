"""The control plane as a burn-in sees it: it gives orders, and takes reports."""

from typing import Protocol

from agents.exchange import Post, exchanged
from muster.wire.burn_in import AskAnswer, AskRequest, BurnInAnswer, BurnInReport


class BurnInServer(Protocol):
    """Calls to the server, each of which raises ``UnreachableError`` or ``Problem``."""

    def ask(self, request: AskRequest) -> AskAnswer: ...

    def report(self, burn_in_id: str, report: BurnInReport) -> BurnInAnswer: ...


class HttpBurnInServer:
    """The server over HTTP. ``post``: one request under the node's credential."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def ask(self, request: AskRequest) -> AskAnswer:
        return exchanged(self._post, "/v1/hosts/self/burn-ins/ask", request, AskAnswer)

    def report(self, burn_in_id: str, report: BurnInReport) -> BurnInAnswer:
        return exchanged(self._post, f"/v1/hosts/self/burn-ins/{burn_in_id}/report", report, BurnInAnswer)
