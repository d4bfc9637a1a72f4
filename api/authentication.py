"""Authentication: from the Authorization header to the principal. One header, one scheme, one answer to every fault."""

from typing import Final

from fastapi import Request

from api.address_limit import address_of
from api.dependencies import dependencies_of
from control.tenants.keys import Caller, caller_with
from muster.domain.errors import UnauthenticatedError
from muster.domain.principals import Principal

_SCHEME: Final = "bearer "


def authenticated(request: Request) -> Principal:
    """Return the principal. Raises ``UnauthenticatedError``.

    No header, two of them, another scheme, and a token that opens nothing are all the same fault.
    """
    principal = caller_of(request).principal()
    request.state.principal = principal
    return principal


def caller_of(request: Request) -> Caller:
    """Return the caller of a well-formed token, without a query.

    Raises ``UnauthenticatedError`` where there is none.
    """
    headers = request.headers.getlist("authorization")
    if len(headers) != 1 or headers[0][: len(_SCHEME)].lower() != _SCHEME:
        raise UnauthenticatedError
    return caller_with(
        dependencies_of(request).units,
        headers[0][len(_SCHEME) :],
        address=address_of(request),
        request_id=getattr(request.state, "request_id", None),
    )
