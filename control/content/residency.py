"""The content store against the residency rule of a tenant: what the rule excludes gets no byte of its content."""

from typing import Final

from sqlalchemy.orm import Session

from muster.db.queries.residency import residency_of_tenant
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.residency import StorePlace

CODE: Final = "outside_residency"
TO_DO: Final = (
    "an operator permits the store with `muster tenant residency set`, or configures one that the rule permits"
)


def require_permitted(session: Session, tenant_id: TenantId, store: StorePlace | None, pointer: str = "/") -> None:
    """Require that content of the tenant may be written to this store; None: no store is configured.

    Raises ValidationFailedError: the tenant's residency rule excludes it. Hosts take that answer as final.
    """
    refusal = residency_of_tenant(session, tenant_id).content_refusal(store)
    if refusal is not None:
        raise ValidationFailedError.at(pointer, CODE, f"{refusal}: {TO_DO}")
