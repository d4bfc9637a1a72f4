"""Authorized queries: the check of the caller's key and the rows in one round trip, answered in one encoding.

For routes that are read often: the key's check and the rows are one statement (``control.tenants.keys.Caller``), and
the answer bypasses FastAPI. The route declares its permission and the document of its answer as any other.
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
from control.core.json_query import JsonQuery
from control.tenants.keys import Answered, Caller
from muster.domain.errors import ForbiddenError, UnauthenticatedError, UnavailableError
from muster.domain.principals import Permission, Principal

T = TypeVar("T")
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class AuthorizedQuery:
    """A caller with a token, for a route that needs ``permission``, which is checked together with the query.

    None: any valid key suffices. All data of such a route passes through here, and none is returned without that
    permission.
    """

    request: Request
    caller: Caller
    permission: Permission | None

    def ask(self, question: JsonQuery[T], parameters: Mapping[str, Any]) -> Answered[T]:
        """Return the answer. Raises ``UnauthenticatedError`` and ``ForbiddenError`` as ``requires`` does."""
        if self.permission is None:
            raise TypeError("a question needs a permission")
        answered = self.caller.ask(self.permission, question, parameters)
        self.request.state.principal = answered.principal
        return answered

    def principal(self) -> Principal:
        """Return the principal, where it is the answer, or must be known before the query. Raises as ``ask``."""
        principal = self.caller.principal()
        if self.permission is not None:
            principal.require(self.permission)
        self.request.state.principal = principal
        return principal


def authorize_query(permission: Permission | None) -> Any:
    """Return a route's dependency that gives an ``AuthorizedQuery``. It waits for nothing, so it costs no thread."""
    declared = "signed in" if permission is None else str(permission)
    refused = (ForbiddenError,) if permission is not None else ()

    async def check(request: Request) -> AuthorizedQuery:
        asker = request.state.asker = AuthorizedQuery(request, caller_of(request), permission)
        return asker

    return Depends(refusing(declaring(check, declared), UnauthenticatedError, *refused, UnavailableError))


def answer(document: Mapping[str, Any], etag: str | None = None) -> Response:
    headers = None if etag is None else {"ETag": etag}
    return Response(_encode(document), media_type="application/json", headers=headers)
