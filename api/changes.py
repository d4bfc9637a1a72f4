"""Changes by REST: one unit of work each, repeatable under an Idempotency-Key, and tried out with ``?dry_run=true``.

The key's row is written in the transaction of the effect, so between them there is no gap: a repetition finds either
nothing or the whole answer.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Self, TypeVar

from fastapi import Depends, Header, Query, Request
from fastapi.responses import JSONResponse

from api.dependencies import dependencies_of
from api.effect_views import effect_view
from api.refusals import refusing
from control.core import idempotency
from control.core.idempotency import StoredAnswer
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, retrying
from control.system.effects.effects import try_change
from muster.domain.errors import (
    ConflictError,
    IdempotencyKeyReusedError,
    InvalidIdempotencyKeyError,
    PreconditionRequiredError,
    RequestInFlightError,
    UnavailableError,
    ValidationFailedError,
)
from muster.domain.principals import Principal

MAX_KEY_LENGTH: Final = 255
_VERSION: Final = re.compile(r'"v(?P<version>[0-9]{1,18})(\.[0-9]{1,18}){0,3}"')
"""Pattern of an ETag.

A job's ETag has the state of its attempts and wait reasons after the version; a change depends on the job's version
alone.
"""
T = TypeVar("T")
Kept = Callable[[UnitOfWork, Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a change; ``etag`` is the version of the object in ``body``.

    ``members_kept``: names members of ``body`` that may be long, never change, and are kept with the object. They are
    not stored with a key, and a repetition reads them there.
    """

    body: Mapping[str, Any]
    status: int = 200
    etag: str | None = None
    location: str | None = None
    members_kept: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Change:
    """One request that changes something."""

    units: UnitOfWorkFactory
    key: str | None
    is_dry_run: bool
    method_path: str
    body_sha256: bytes

    def without_key(self) -> Self:
        """Return the change without its key, for an answer that must not be stored: a secret that is shown once."""
        return replace(self, key=None)

    def run(
        self,
        principal: Principal,
        action: str,
        work: Callable[[UnitOfWork], T],
        render: Callable[[T], Answer],
        kept: Kept | None = None,
    ) -> JSONResponse:
        """Do ``work`` once and answer; begin again where it met another unit on the same rows.

        ``kept`` returns the members that ``Answer.members_kept`` names, for a stored answer without them.
        """
        if self.is_dry_run:
            return retrying(lambda: self._tried(principal, action, work, render))
        return retrying(lambda: self._once(principal, action, work, render, kept))

    def _tried(
        self, principal: Principal, action: str, work: Callable[[UnitOfWork], T], render: Callable[[T], Answer]
    ) -> JSONResponse:
        """Return the answer of the change with its effect; all of it is rolled back."""
        answer, consequences, effect = try_change(self.units, principal, action, lambda unit: render(work(unit)))
        body = {**answer.body, "dry_run": True, "effect": effect_view(effect), "consequences": consequences}
        return JSONResponse(body, status_code=200)

    def _once(
        self,
        principal: Principal,
        action: str,
        work: Callable[[UnitOfWork], T],
        render: Callable[[T], Answer],
        kept: Kept | None,
    ) -> JSONResponse:
        key = self.key
        with self.units.begin(principal, action) as unit:
            if key is not None:
                earlier = idempotency.claim(unit, key, method_path=self.method_path, body_sha256=self.body_sha256)
                if earlier is not None:
                    return self._replay(unit, earlier, kept)
            answer = render(work(unit))
            if key is not None:
                idempotency.store(
                    unit,
                    key,
                    status=answer.status,
                    body={name: value for name, value in answer.body.items() if name not in answer.members_kept},
                    etag=answer.etag,
                    location=answer.location,
                )
        return _response(answer.body, answer.status, answer.etag, answer.location)

    def _replay(self, unit: UnitOfWork, earlier: StoredAnswer, kept: Kept | None) -> JSONResponse:
        if earlier.method_path != self.method_path or earlier.body_sha256 != self.body_sha256:
            raise IdempotencyKeyReusedError
        body = earlier.body or {}
        # The answers that release 0.1.0 stored are whole.
        body = body if kept is None else {**kept(unit, body), **body}
        response = _response(body, earlier.status or 200, earlier.etag, earlier.location)
        response.headers["Idempotency-Replayed"] = "true"
        return response


def _response(body: Mapping[str, Any], status: int, etag: str | None, location: str | None) -> JSONResponse:
    headers = {name: value for name, value in (("ETag", etag), ("Location", location)) if value is not None}
    return JSONResponse(body, status_code=status, headers=headers)


def change_of(
    request: Request,
    idempotency_key: Annotated[str | None, Header(description="makes a repetition safe: one key, one effect")] = None,
    *,
    dry_run: Annotated[bool, Query()] = False,
) -> Change:
    """Return the request's change. Raises ``InvalidIdempotencyKeyError``.

    A key must be visible ASCII, neither empty nor too long.
    """
    given = request.headers.getlist("idempotency-key")
    if len(given) > 1:
        raise InvalidIdempotencyKeyError
    if idempotency_key is not None and not _is_key(idempotency_key):
        raise InvalidIdempotencyKeyError
    body = getattr(request.state, "raw_body", b"")
    return Change(
        units=dependencies_of(request).units,
        key=idempotency_key,
        is_dry_run=dry_run,
        method_path=f"{request.method} {request.scope['path']}",
        body_sha256=hashlib.sha256(body).digest(),
    )


def _is_key(text: str) -> bool:
    return 1 <= len(text) <= MAX_KEY_LENGTH and all("!" <= character <= "~" for character in text)


Changing = Annotated[
    Change,
    Depends(
        refusing(
            change_of,
            InvalidIdempotencyKeyError,
            RequestInFlightError,
            IdempotencyKeyReusedError,
            ConflictError,
            UnavailableError,
        )
    ),
]


def etag_of(version: int) -> str:
    return f'"v{version}"'


def version_in(if_match: str | None, *, is_required: bool) -> int | None:
    """Return the version that an If-Match header names; None where it is absent or ``*``.

    Raises:
        PreconditionRequiredError: absent where it is needed.
        ValidationFailedError: not an ETag of this API.
    """
    if if_match is None:
        if is_required:
            raise PreconditionRequiredError
        return None
    text = if_match.strip()
    if text == "*":
        return None
    named = _VERSION.fullmatch(text)
    if named is None:
        raise ValidationFailedError('If-Match: must be an ETag such as "v3"')
    return int(named["version"])
