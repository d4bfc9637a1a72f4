"""Comparison of the store with the database: after a restore of either one, or when a job misses a chunk.

What the database has and the store lacks is MISSING: jobs that need it are held. What the store has and the database
does not know is SURPLUS: it only takes space. A database from before the store's time lacks what was uploaded since;
a store from before the database's time lacks what was uploaded since.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sqlalchemy import select, text

from control.content import rows
from control.content.lost import by_tenant, mark_lost, with_folders
from control.content.types import ObjectName, StoredAs
from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from muster.db.models import StoredObject, Tenant
from muster.db.sessions import note_change
from muster.domain.errors import NotFoundError
from muster.domain.ids import TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.stored_content import ObjectKind, ObjectState
from muster.store.keys import object_key
from muster.store.objects import ObjectStore

MARK: Final = declare_action("content.mark_missing")
ADOPT: Final = declare_action("content.adopt")
_PREFIX: Final = "tenants/"
_ADOPT: Final = text("""
    INSERT INTO stored_objects (tenant_id, kind, digest, num_bytes, state, idle_at)
    VALUES (:tenant_id, :kind, :digest, :num_bytes, 'present', :now)
    ON CONFLICT DO NOTHING
""")


@dataclass(slots=True)
class Compared:
    """``missing``, with the digests of the bundles that need each. ``surplus``: of tenants that the database has.

    ``unknown``: keys that are of no tenant, or no object.
    """

    num_objects: int = 0
    missing: dict[ObjectName, tuple[str, ...]] = field(default_factory=dict)
    surplus: list[ObjectName] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


class _Known(NamedTuple):
    """An object that the database has. ``is_present``: the store should have it."""

    name: ObjectName
    is_present: bool


def compare(units: UnitOfWorkFactory, store: ObjectStore, tenant_id: TenantId | None = None) -> Compared:
    """Compare the store with the database; uploads and deletions may happen meanwhile.

    Raises:
        NotFoundError: there is no such tenant.
        StoreError: the store does not answer.
    """
    with units.read() as session:
        if tenant_id is not None and session.get(Tenant, tenant_id) is None:
            raise NotFoundError(f"there is no tenant {tenant_id}")
    before = _objects(units, tenant_id)
    listed = {one.key: one.num_bytes for one in store.list(_PREFIX if tenant_id is None else f"{_PREFIX}{tenant_id}/")}
    after = _objects(units, tenant_id)
    with units.read() as session:
        tenants = set(session.scalars(select(Tenant.id)))
    found = Compared(num_objects=sum(one.is_present for one in after.values()))
    for key, one in before.items():
        # An object that was deleted since is in the database no more.
        if one.is_present and key in after and after[key].is_present and listed.get(key) != one.name.num_bytes:
            found.missing[one.name] = ()
    for key, num_bytes in listed.items():
        # One that was deleted since it was listed was known before, and one that was uploaded meanwhile is known after.
        if key in before or key in after:
            continue
        surplus = _name_in(key, num_bytes)
        if surplus is None or surplus.tenant_id not in tenants:
            found.unknown.append(key)
        else:
            found.surplus.append(surplus)
    found.missing = with_folders(units, list(found.missing))
    return found


def mark_missing(units: UnitOfWorkFactory, by: Principal, names: Sequence[ObjectName]) -> int:
    """Make bundles and environments incomplete that need missing objects: the next use uploads or builds them again.

    Return how many.
    """
    return sum(_mark(units, by, tenant_id, of_tenant) for tenant_id, of_tenant in by_tenant(names).items())


def adopt(units: UnitOfWorkFactory, by: Principal, names: Sequence[ObjectName]) -> None:
    """Add surplus objects to the database as idle: the keeper deletes them, unless an upload names them before."""
    for tenant_id, of_tenant in by_tenant(names).items():
        with units.begin(by, ADOPT) as unit:
            unit.principal.require(Permission.TENANT_WRITE)
            rows.lock_use(unit, tenant_id)
            note_change(unit.session)
            for name in of_tenant:
                given = {"tenant_id": tenant_id, "kind": name.kind.value, "digest": bytes.fromhex(name.digest)}
                unit.session.execute(_ADOPT, {**given, "num_bytes": name.num_bytes, "now": unit.now})
            detail = {"num_objects": len(of_tenant)}
            unit.audit("content.adopt", "tenant", tenant_id, tenant_id=tenant_id, detail=detail)


def _mark(units: UnitOfWorkFactory, by: Principal, tenant_id: TenantId, names: Sequence[ObjectName]) -> int:
    with units.begin(by, MARK) as unit:
        unit.principal.require(Permission.TENANT_WRITE)
        marked = mark_lost(unit, tenant_id, names)
        detail = {"num_objects": marked.num_objects, "bundles": [folder.digest for folder in marked.folders[:100]]}
        unit.audit("content.mark_missing", "tenant", tenant_id, tenant_id=tenant_id, detail=detail)
        return marked.num_incomplete


def _objects(units: UnitOfWorkFactory, tenant_id: TenantId | None) -> dict[str, _Known]:
    """Return the objects that the database has, by their keys."""
    columns = (StoredObject.tenant_id, StoredObject.kind, StoredObject.digest, StoredObject.num_bytes)
    query = select(*columns, StoredObject.state, StoredObject.id, StoredObject.num_stored)
    if tenant_id is not None:
        query = query.where(StoredObject.tenant_id == tenant_id)
    found: dict[str, _Known] = {}
    with units.read() as session:
        for owner, kind, digest, num_bytes, state, number, num_stored in session.execute(query):
            name = ObjectName(owner, kind, digest.hex(), num_bytes, StoredAs(number, num_stored))
            found[object_key(owner, kind, name.digest)] = _Known(name, is_present=state is ObjectState.PRESENT)
    return found


def _name_in(key: str, num_bytes: int) -> ObjectName | None:
    _, owner, folder, *rest = [*key.split("/"), "", "", ""][:5]
    kind = {"chunks": ObjectKind.CHUNK, "manifests": ObjectKind.MANIFEST}.get(folder)
    digest = rest[-1] if kind is ObjectKind.CHUNK else rest[0]
    try:
        is_named = kind is not None and num_bytes > 0 and key == object_key(TenantId(owner), kind, digest)
    except ValueError:
        return None
    return ObjectName(TenantId(owner), kind, digest, num_bytes) if is_named and kind is not None else None
