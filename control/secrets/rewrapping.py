"""Change of the key that protects secrets and the receivers of routes: every data key is wrapped again, in batches.

Each batch is a transaction of its own, and takes values that have another key: a run that was killed is continued by
the next one, and two runs at once do no harm. Values stay as they are. One that cannot be opened keeps its key.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from sqlalchemy import func, select, tuple_, update
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.secrets.envelopes import Place, place_of_route, rewrapped
from control.secrets.key_wrapping import KeyWrapper, WrappedKey
from muster.db.models import NotificationRoute, Secret, SecretVersion
from muster.domain.errors import SecretKeyError
from muster.domain.ids import SecretId, is_id
from muster.domain.principals import Permission, Principal

REWRAP: Final = declare_action("secret.rewrap")
READ: Final = declare_action("secret.keys")
BATCH: Final = 100


class SecretKeyUse(msgspec.Struct, frozen=True):
    """A key, and how many stored values it protects. ``is_usable``: the control plane has it."""

    key_id: str
    is_active: bool
    is_usable: bool
    num_values: int


@dataclass(frozen=True, slots=True)
class BatchDone:
    """``num_left``: values that still have another key than the active one.

    ``num_unusable``: values among them that do not open, with the keys that they need. All are found once a batch has
    no other value.
    """

    num_rewrapped: int
    num_left: int
    num_unusable: int = 0
    needed_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrapped:
    """A value's data key under the active key. ``before``: the key that it had."""

    place: Place
    before: str
    wrapped: WrappedKey


@dataclass(frozen=True, slots=True)
class Batch:
    """The values of one transaction, the key that they were brought under, and what did not open on the way to them."""

    active: str
    values: tuple[Rewrapped, ...]
    num_unusable: int = 0
    needed_keys: tuple[str, ...] = ()


def keys_in_use(unit: UnitOfWork, active: str, usable: Collection[str]) -> Sequence[SecretKeyUse]:
    """Return each key that the control plane has or a value needs, the active one first.

    ``active`` and ``usable``: of the ``KeyWrapper``, which is asked before the transaction.
    """
    unit.principal.require(Permission.SECRET_KEY_WRITE)
    numbers = _num_by_key(unit.session)
    ids = sorted({*usable, *numbers}, key=lambda key_id: (key_id != active, key_id))
    return [SecretKeyUse(key_id, key_id == active, key_id in usable, numbers.get(key_id, 0)) for key_id in ids]


def wrap_batch(units: UnitOfWorkFactory, keys: KeyWrapper, principal: Principal) -> Batch:
    """Return the next values with another key than the active one, with their data keys wrapped again.

    It is done before the transaction that stores them. A value that cannot be opened is left out, and others follow.
    Raises ``SecretKeyError``: there is no active key.
    """
    principal.require(Permission.SECRET_KEY_WRITE)
    active, usable = keys.active_key_id(), keys.key_ids()
    with units.read() as session:
        numbers = _num_by_key(session)
        routes = session.scalars(
            select(NotificationRoute)
            .where(NotificationRoute.key_id != active, NotificationRoute.key_id.in_(usable))
            .order_by(NotificationRoute.id)
        ).all()
    needed = Counter({key_id: number for key_id, number in numbers.items() if key_id not in {active, *usable}})
    values: list[Rewrapped] = []
    for route in routes:
        try:
            values += [_route_again(keys, route)] if len(values) < BATCH else []
        except SecretKeyError:
            needed[route.key_id] += 1
    rows = _rows_after(units, active, usable, None)
    while rows and not values:
        for version, secret in rows:
            try:
                values.append(_again(keys, version, secret))
            except SecretKeyError:
                needed[version.key_id] += 1
        last = rows[-1][0]
        rows = _rows_after(units, active, usable, (last.secret_id, last.version))
    return Batch(active, tuple(values), needed.total(), tuple(sorted(needed)))


def _rows_after(
    units: UnitOfWorkFactory, active: str, usable: Collection[str], last: tuple[SecretId, int] | None
) -> Sequence[tuple[SecretVersion, Secret]]:
    place = SecretVersion.secret_id, SecretVersion.version
    query = (
        select(SecretVersion, Secret)
        .join(Secret, Secret.id == SecretVersion.secret_id)
        .where(SecretVersion.key_id != active, SecretVersion.key_id.in_(usable))
        .order_by(*place)
        .limit(BATCH)
    )
    with units.read() as session:
        found = session.execute(query if last is None else query.where(tuple_(*place) > last))
        return [(row[0], row[1]) for row in found]


def _num_by_key(session: Session) -> Counter[str]:
    """Return how many values each key protects: of secrets, and receivers of routes."""
    numbers: Counter[str] = Counter()
    for table in (SecretVersion, NotificationRoute):
        counted = session.execute(select(table.key_id, func.count()).group_by(table.key_id))
        numbers.update({row[0]: row[1] for row in counted})
    return numbers


def _route_again(keys: KeyWrapper, route: NotificationRoute) -> Rewrapped:
    place = place_of_route(route.tenant_id, route.id, route.sealed_at_version)
    return Rewrapped(place, route.key_id, rewrapped(keys, place, WrappedKey(route.key_id, route.wrapped_key)))


def _again(keys: KeyWrapper, version: SecretVersion, secret: Secret) -> Rewrapped:
    place = Place(secret.tenant_id, secret.id, secret.name, version.version)
    wrapped = WrappedKey(version.key_id, version.wrapped_key)
    return Rewrapped(place, version.key_id, rewrapped(keys, place, wrapped))


def store_batch(unit: UnitOfWork, batch: Batch) -> BatchDone:
    """Store the data keys that were wrapped again.

    A value that was removed or wrapped again meanwhile is left as it is.
    """
    unit.principal.require(Permission.SECRET_KEY_WRITE)
    num_rewrapped = 0
    for one in batch.values:
        new = {"key_id": one.wrapped.key_id, "wrapped_key": one.wrapped.content}
        changed = (
            update(SecretVersion)
            .values(new)
            .where(
                SecretVersion.secret_id == one.place.secret_id,
                SecretVersion.version == one.place.version,
                SecretVersion.key_id == one.before,
            )
        )
        if is_id("route", one.place.secret_id):
            changed = (
                update(NotificationRoute)
                .values(new)
                .where(
                    NotificationRoute.id == one.place.secret_id,
                    NotificationRoute.sealed_at_version == one.place.version,
                    NotificationRoute.key_id == one.before,
                )
            )
        num_rewrapped += unit.session.execute(changed).rowcount  # type: ignore[attr-defined]  # a cursor's result
    if batch.values:  # also where others were quicker: a statement that may change rows leaves its trace
        detail = {"num_values": num_rewrapped, "from": sorted({one.before for one in batch.values})}
        unit.emit("secret.rewrapped", "secret_key", batch.active, payload=detail)
        unit.audit("secret.rewrap", "secret_key", batch.active, detail=detail)
    numbers = _num_by_key(unit.session)
    num_left = numbers.total() - numbers[batch.active]
    return BatchDone(num_rewrapped, num_left, batch.num_unusable, batch.needed_keys)
