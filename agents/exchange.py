"""One message to the control plane and its answer, under the node's credential."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import httpx
import msgspec

from agents.tokens import NoTokenError
from muster.client.transport import UnreachableError, raise_for_problem
from muster.wire.messages import WireAnswer, WireMessage

_Answer = TypeVar("_Answer", bound=WireAnswer)
Post = Callable[[str, bytes, Mapping[str, str]], httpx.Response]
"""One request under the present credential: path, body, headers."""


def exchanged(post: Post, path: str, message: WireMessage, answer_type: type[_Answer]) -> _Answer:
    """Send one message and return its answer. Raises ``UnreachableError`` or ``Problem``."""
    try:
        answer = post(path, msgspec.json.encode(message), {})
    except NoTokenError as fault:
        raise UnreachableError(str(fault)) from fault
    except httpx.HTTPError as error:
        raise UnreachableError(f"no answer: {str(error) or type(error).__name__}") from error
    raise_for_problem(answer)
    try:
        return msgspec.json.decode(answer.content, type=answer_type)
    except msgspec.MsgspecError as error:
        raise UnreachableError(f"the answer of {path} cannot be read: {error}") from error
