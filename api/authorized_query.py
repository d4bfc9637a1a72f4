"""Reads that ask who calls and what they want to know in one round trip, and answer in the bytes of one encoding.

For what is read all the time: whose key it is and the rows are one statement (``control.tenants.keys.Caller``), and the
answer passes FastAPI by. The route declares its permission and the document of its answer as any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from fastapi import Depends, Request
from fastapi.responses import Response

from api.authentication import caller_of
from api.permissions import declaring
from api.refusals import refusing
from control.tenants.keys import Answered, Caller
from muster.db.queries.json_query import Question
from muster.domain.errors import ForbiddenError, UnauthenticatedError, UnavailableError
from muster.domain.principals import Permission, Principal

T = TypeVar("T")
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Asker:
    """Whoever comes with a token, for a route that needs ``permission``: whether they hold it is asked with the rows.

    None: any valid key will do. All that a route can learn from the database passes by here, and nobody gets it
    without that permission.
    """

    request: Request
    caller: Caller
    permission: Permission | None

    def ask(self, question: Question[T], parameters: Mapping[str, Any]) -> Answered[T]:
        """Raises ``UnauthenticatedError`` and ``ForbiddenError`` as ``requires`` does."""
        if self.permission is None:
            raise TypeError("a question needs a permission")
        answered = self.caller.ask(self.permission, question, parameters)
        self.request.state.principal = answered.principal
        return answered

    def principal(self) -> Principal:
        """Who asks, where that is the question, or must be known before it. Raises as ``ask``."""
        principal = self.caller.principal()
        if self.permission is not None:
            principal.require(self.permission)
        self.request.state.principal = principal
        return principal


def asks(permission: Permission | None) -> Any:
    """An ``Asker`` for a route. It waits for nothing, so it costs no thread."""
    declared = "signed in" if permission is None else str(permission)
    refused = (ForbiddenError,) if permission is not None else ()

    async def check(request: Request) -> Asker:
        asker = request.state.asker = Asker(request, caller_of(request), permission)
        return asker

    return Depends(refusing(declaring(check, declared), UnauthenticatedError, *refused, UnavailableError))


def answer(document: Mapping[str, Any], etag: str | None = None) -> Response:
    headers = None if etag is None else {"ETag": etag}
    return Response(_encode(document), media_type="application/json", headers=headers)
