"""Keys that sign-ins of the command have made: they end with what they were made from."""

from sqlalchemy import select
from sqlalchemy.sql.elements import ColumnElement

from control.core.unit_of_work import UnitOfWork
from muster.db.models import ApiKey, CommandLogin
from muster.domain.ids import KeyId


def revoke_of_person(unit: UnitOfWork, person_id: str) -> None:
    """Revoke every key that the person confirmed a sign-in for."""
    _revoke(unit, CommandLogin.person_id == person_id)


def revoke_of_key(unit: UnitOfWork, key_id: KeyId) -> None:
    """Revoke every key that was made through a session of this key, however far."""
    _revoke(unit, CommandLogin.holder_key_id == key_id)


def revoke_key(unit: UnitOfWork, key: ApiKey) -> None:
    """Revoke a key that is not revoked yet, and the keys that were made by it."""
    key.revoked_at = unit.now
    unit.emit("key.revoked", "key", key.id, tenant_id=key.tenant_id, payload={"name": key.name})
    unit.audit("key.revoke", "key", key.id, tenant_id=key.tenant_id, detail={"name": key.name})
    unit.session.flush()
    revoke_of_key(unit, key.id)


def _revoke(unit: UnitOfWork, made_by: ColumnElement[bool]) -> None:
    query = select(ApiKey).join(CommandLogin, CommandLogin.key_id == ApiKey.id).where(made_by)
    for key in unit.session.scalars(query.where(ApiKey.revoked_at.is_(None)).order_by(ApiKey.id)).all():
        revoke_key(unit, key)
