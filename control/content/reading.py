"""Reading of stored objects, each byte of them, by processes that serve nothing: commands and keepers."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Final

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from control.content.types import ObjectName, StoredAs
from control.core.unit_of_work import UnitOfWorkFactory
from muster.db.models import StoredObject
from muster.domain.ids import TenantId
from muster.domain.stored_content import ObjectKind, ObjectState
from muster.store.faults import MAX_ERROR_BYTES, ObjectGoneError, StoreWrongError
from muster.store.keys import object_key
from muster.store.objects import ObjectStore

_PAGE: Final = 500
NUMBERED: Final = select(
    StoredObject.id,
    StoredObject.tenant_id,
    StoredObject.kind,
    StoredObject.digest,
    StoredObject.num_bytes,
    StoredObject.num_stored,
)
_NUM_READS: Final = 2
"""Other bytes count only where a second read has them too: the network may have damaged the first."""


class ObjectFault(StrEnum):
    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is to read."""

    num_objects: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ObjectRead:
    """An object that was read. ``number``: its place in the order of reading."""

    number: int
    name: ObjectName
    fault: ObjectFault | None


@dataclass(slots=True)
class Pace:
    """The pace of reading, in bytes a second; it has no memory of a pause: what was not read then is not caught up."""

    bytes_a_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _due_s: float = field(default=0.0, init=False)

    def take(self, num_bytes: int) -> None:
        """Wait until an object of so many bytes may be read."""
        now_s = self.clock()
        self._due_s = max(self._due_s, now_s)
        if self._due_s > now_s:
            self.sleep(self._due_s - now_s)
        self._due_s += num_bytes / self.bytes_a_s


def numbered(
    session: Session, query: Select[int, TenantId, ObjectKind, bytes, int, int]
) -> list[tuple[int, ObjectName]]:
    """Return the objects of a query that began as ``NUMBERED``, with their numbers."""
    return [
        (number, ObjectName(tenant_id, kind, digest.hex(), num_bytes, StoredAs(number, num_stored)))
        for number, tenant_id, kind, digest, num_bytes, num_stored in session.execute(query)
    ]


def fault_in(store: ObjectStore, name: ObjectName) -> ObjectFault | None:
    """Read an object, and return what is wrong with it. Raises StoreError: the store does not answer."""
    key = object_key(name.tenant_id, name.kind, name.digest)
    for _ in range(_NUM_READS):
        try:
            content = store.read(key, max(name.num_bytes, MAX_ERROR_BYTES))
        except ObjectGoneError:
            return ObjectFault.MISSING
        except StoreWrongError:
            if store.head(key) == name.num_bytes:
                raise
            return ObjectFault.CORRUPT  # it has more bytes than the database says
        if sha256(content).hexdigest() == name.digest:
            return None
    return ObjectFault.CORRUPT


def extent_of(units: UnitOfWorkFactory, tenant_id: TenantId | None, after: int) -> Extent:
    """Return how much the database has of the objects after this number."""
    query = select(func.count(), func.coalesce(func.sum(StoredObject.num_bytes), 0)).where(*_meant(tenant_id, after))
    with units.read() as session:
        num_objects, num_bytes = session.execute(query).one()
    return Extent(num_objects, int(num_bytes))


def read_objects(
    units: UnitOfWorkFactory,
    store: ObjectStore,
    pace: Pace,
    *,
    tenant_id: TenantId | None = None,
    after: int = 0,
    share: float = 1.0,
) -> Iterator[ObjectRead]:
    """Read stored objects one by one, in the order of their numbers.

    ``after``: the number of the last one that an earlier reading had. ``share``: of the objects, chosen by chance.

    Raises StoreError: the store does not answer.
    """
    while page := _page(units, tenant_id, after):
        for number, name in page:
            after = number
            if share < 1.0 and random.random() >= share:  # noqa: S311  # a sample keeps no secret
                continue
            pace.take(name.num_bytes)
            fault = fault_in(store, name)
            if fault is not None and not _is_present(units, number):
                fault = None  # it was deleted meanwhile
            yield ObjectRead(number, name, fault)


def _page(units: UnitOfWorkFactory, tenant_id: TenantId | None, after: int) -> list[tuple[int, ObjectName]]:
    query = NUMBERED.where(*_meant(tenant_id, after)).order_by(StoredObject.id).limit(_PAGE)
    with units.read() as session:
        return numbered(session, query)


def _meant(tenant_id: TenantId | None, after: int) -> tuple[ColumnElement[bool], ...]:
    of_tenant = () if tenant_id is None else (StoredObject.tenant_id == tenant_id,)
    return (StoredObject.state == ObjectState.PRESENT, StoredObject.id > after, *of_tenant)


def _is_present(units: UnitOfWorkFactory, number: int) -> bool:
    query = select(StoredObject.id).where(StoredObject.id == number, StoredObject.state == ObjectState.PRESENT)
    with units.read() as session:
        return session.scalar(query) is not None
