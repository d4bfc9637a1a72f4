"""Answers to requests with an Idempotency-Key, stored in the transaction of the effect (I12)."""

from typing import Any

import msgspec

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from muster.db.queries.idempotency import claim_key, store_answer
from muster.domain.principals import Principal


class StoredAnswer(msgspec.Struct, frozen=True):
    """The answer to the first request with a key, and the request that it answered."""

    method_path: str
    body_sha256: bytes
    status: int | None
    body: dict[str, Any] | None
    etag: str | None
    location: str | None


def claim(unit: UnitOfWork, key: str, *, method_path: str, body_sha256: bytes) -> StoredAnswer | None:
    """Claim the key for the unit's principal. ``None``: it is free; ``store`` must follow. Else the earlier answer.

    Raises:
        RequestInFlightError: another request with the key took longer than our lock timeout.
    """
    scope = _scope_of(unit.principal)
    earlier = claim_key(
        unit.session, scope=scope, key=key, method_path=method_path, body_sha256=body_sha256, now=unit.now
    )
    return None if earlier is None else record_of(earlier, StoredAnswer)


def store(
    unit: UnitOfWork, key: str, *, status: int, body: dict[str, Any], etag: str | None, location: str | None
) -> None:
    """Store the answer to every repetition of the request that claimed the key."""
    scope = _scope_of(unit.principal)
    store_answer(unit.session, scope=scope, key=key, status=status, body=body, etag=etag, location=location)


def _scope_of(principal: Principal) -> str:
    return principal.tenant_id or principal.key_id or principal.name
