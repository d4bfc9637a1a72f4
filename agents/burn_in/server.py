"""The control plane as a burn-in sees it: asks for orders, reports."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import httpx
import msgspec

from agents.tokens import NoTokenError
from muster.client.transport import UnreachableError, raise_for_problem
from muster.wire.burn_in import AskAnswer, AskRequest, BurnInAnswer, BurnInReport
from muster.wire.host import WireAnswer, WireMessage

_Answer = TypeVar("_Answer", bound=WireAnswer)
Post = Callable[[str, bytes, Mapping[str, str]], httpx.Response]


class BurnInServer(Protocol):
    """Each call raises ``UnreachableError`` or ``Problem``."""

    def ask(self, request: AskRequest) -> AskAnswer: ...

    def report(self, burn_in_id: str, report: BurnInReport) -> BurnInAnswer: ...


class HttpBurnInServer:
    """``post``: one request under the node's credential."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def ask(self, request: AskRequest) -> AskAnswer:
        return self._sent("/v1/hosts/self/burn-ins/ask", request, AskAnswer)

    def report(self, burn_in_id: str, report: BurnInReport) -> BurnInAnswer:
        return self._sent(f"/v1/hosts/self/burn-ins/{burn_in_id}/report", report, BurnInAnswer)

    def _sent(self, path: str, message: WireMessage, answer_type: type[_Answer]) -> _Answer:
        try:
            answer = self._post(path, msgspec.json.encode(message), {})
        except NoTokenError as fault:
            raise UnreachableError(str(fault)) from fault
        except httpx.HTTPError as error:
            raise UnreachableError(f"no answer: {str(error) or type(error).__name__}") from error
        raise_for_problem(answer)
        try:
            return msgspec.json.decode(answer.content, type=answer_type)
        except msgspec.MsgspecError as error:
            raise UnreachableError(f"the answer of {path} cannot be read: {error}") from error
