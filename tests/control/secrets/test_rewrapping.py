"""A new key takes over all stored values in batches, while they are read, and after a kill it continues."""

import os
from pathlib import Path

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.notifications import routes, sealing
from control.secrets import rewrapping, tenant_secrets
from control.secrets.envelopes import Envelope, Place, opened
from control.secrets.key_file import FileKeys
from control.secrets.key_wrapping import KeyWrapper, WrappedKey
from muster.db.models import AuditEntry, NotificationRoute, Secret, SecretVersion
from muster.domain.errors import ForbiddenError, SecretKeyError
from muster.domain.notifications.routes import RouteDefinition
from muster.failpoints import FailpointError, arming
from tests.control.secrets.secret_case import KeyService, admin_of, key_file, rewrap_once, set_secret
from tests.fleet_factory import OPERATOR, Fleet, make_fleet


@pytest.fixture
def fleet(units: UnitOfWorkFactory, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(rewrapping, "BATCH", 2)
    return make_fleet(units)


def values(fleet: Fleet, keys: KeyWrapper) -> dict[str, bytes]:
    with fleet.units.read() as session:
        rows = session.execute(select(SecretVersion, Secret).join(Secret, Secret.id == SecretVersion.secret_id)).all()
    return {
        secret.name: opened(
            keys,
            Place(secret.tenant_id, secret.id, secret.name, version.version),
            Envelope(WrappedKey(version.key_id, version.wrapped_key), version.nonce, version.sealed, version.num_bytes),
        )
        for version, secret in rows
    }


def uses(fleet: Fleet, keys: KeyWrapper) -> list[tuple[str, bool, bool, int]]:
    with fleet.units.begin(OPERATOR, rewrapping.READ) as unit:
        found = rewrapping.keys_in_use(unit, keys.active_key_id(), keys.key_ids())
    return [(one.key_id, one.is_active, one.is_usable, one.num_values) for one in found]


def test_values_move_to_the_new_key_and_stay_readable_all_the_while(fleet: Fleet, tmp_path: Path) -> None:
    old = key_file(tmp_path / "keys", "old")
    for name in "abcde":
        set_secret(fleet.units, old, fleet.tenant_id, name, name.encode())
    stored = {name: name.encode() for name in "abcde"}
    both = key_file(tmp_path / "keys", "new", "old")
    assert uses(fleet, both) == [("new", True, True, 0), ("old", False, True, 5)]
    for num_left in (3, 1, 0):
        assert rewrap_once(fleet.units, both).num_left == num_left
        assert values(fleet, both) == stored
    assert rewrap_once(fleet.units, both) == rewrapping.BatchDone(0, 0)
    assert uses(fleet, both) == [("new", True, True, 5), ("old", False, True, 0)]
    assert values(fleet, key_file(tmp_path / "keys", "new")) == stored
    with fleet.units.read() as session:
        told = session.scalars(select(AuditEntry.detail).where(AuditEntry.action == "secret.rewrap")).all()
    assert [detail["num_values"] for detail in told] == [2, 2, 1]


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_kill_around_the_commit_loses_nothing_and_the_next_run_continues(
    fleet: Fleet, tmp_path: Path, where: str
) -> None:
    old = key_file(tmp_path / "keys", "old")
    for name in "abc":
        set_secret(fleet.units, old, fleet.tenant_id, name, name.encode())
    both = key_file(tmp_path / "keys", "new", "old")
    with arming(f"secret.rewrap.{where}_commit=raise"), pytest.raises(FailpointError):
        rewrap_once(fleet.units, both)
    assert values(fleet, both) == {name: name.encode() for name in "abc"}
    while rewrap_once(fleet.units, both).num_left:
        pass
    assert values(fleet, key_file(tmp_path / "keys", "new")) == {name: name.encode() for name in "abc"}


def test_two_runs_at_once_do_no_harm(fleet: Fleet, tmp_path: Path) -> None:
    secret = set_secret(fleet.units, key_file(tmp_path / "keys", "old"), fleet.tenant_id, "a", b"a")
    both = key_file(tmp_path / "keys", "new", "old")
    late = rewrapping.wrap_batch(fleet.units, both, OPERATOR)
    assert rewrap_once(fleet.units, both) == rewrapping.BatchDone(1, 0)
    with fleet.units.begin(OPERATOR, rewrapping.REWRAP) as unit:
        assert rewrapping.store_batch(unit, late) == rewrapping.BatchDone(0, 0)
    assert values(fleet, both) == {"a": b"a"}
    # One that is deleted between is left out as well.
    third = key_file(tmp_path / "keys", "newest", "new")
    late = rewrapping.wrap_batch(fleet.units, third, OPERATOR)
    admin = admin_of(fleet.tenant_id)
    with fleet.units.begin(admin, tenant_secrets.DELETE) as unit:
        tenant_secrets.delete(unit, secret.id)
    with fleet.units.begin(OPERATOR, rewrapping.REWRAP) as unit:
        assert rewrapping.store_batch(unit, late) == rewrapping.BatchDone(0, 0)


def test_a_missing_key_is_shown_and_stated_by_the_run(fleet: Fleet, tmp_path: Path) -> None:
    set_secret(fleet.units, key_file(tmp_path / "keys", "old"), fleet.tenant_id, "a", b"a")
    alone = key_file(tmp_path / "keys", "new")
    assert uses(fleet, alone) == [("new", True, True, 0), ("old", False, False, 1)]
    assert rewrap_once(fleet.units, alone) == rewrapping.BatchDone(0, 1, 1, ("old",))
    with pytest.raises(SecretKeyError, match="cannot be read"):
        rewrap_once(fleet.units, FileKeys(tmp_path / "nowhere"))


def test_values_that_cannot_be_opened_are_passed_over_and_counted(fleet: Fleet, tmp_path: Path) -> None:
    """More than a batch of them, before the others."""
    old = key_file(tmp_path / "keys", "old")
    for name in "abcdef":
        set_secret(fleet.units, old, fleet.tenant_id, name, name.encode())
    set_secret(fleet.units, key_file(tmp_path / "keys", "lost"), fleet.tenant_id, "z", b"z")
    with fleet.units.begin(OPERATOR, rewrapping.REWRAP) as unit:
        ids = unit.session.scalars(select(SecretVersion.secret_id).where(SecretVersion.key_id == "old")).all()
        for version in unit.session.scalars(select(SecretVersion).where(SecretVersion.secret_id.in_(sorted(ids)[:3]))):
            version.wrapped_key = bytes(len(version.wrapped_key))
        unit.emit("secret.rewrapped", "secret_key", "old", payload={})
        unit.audit("secret.rewrap", "secret_key", "old", detail={})
    both = key_file(tmp_path / "keys", "new", "old")
    done = [rewrap_once(fleet.units, both) for _ in range(4)]
    assert [(each.num_rewrapped, each.num_left) for each in done] == [(1, 6), (1, 5), (1, 4), (0, 4)]
    assert done[-1] == rewrapping.BatchDone(0, 4, 4, ("lost", "old"))
    assert uses(fleet, both) == [("new", True, True, 3), ("lost", False, False, 1), ("old", False, True, 3)]


def test_a_key_service_takes_over_without_seeing_a_value(fleet: Fleet) -> None:
    service = KeyService()
    set_secret(fleet.units, service, fleet.tenant_id, "a", b"a value that stays here")
    service.keys["vault:v2"] = os.urandom(32)
    service.active = "vault:v2"
    assert rewrap_once(fleet.units, service) == rewrapping.BatchDone(1, 0)
    del service.keys["vault:v1"]
    assert values(fleet, service) == {"a": b"a value that stays here"}
    assert not [sent for sent in service.seen if b"stays here" in sent]


def test_only_operators_change_keys(fleet: Fleet, tmp_path: Path) -> None:
    keys = key_file(tmp_path / "keys", "k")
    with pytest.raises(ForbiddenError):
        rewrapping.wrap_batch(fleet.units, keys, admin_of(fleet.tenant_id))


def test_receivers_of_routes_are_brought_under_the_new_key_too(fleet: Fleet, tmp_path: Path) -> None:
    before = key_file(tmp_path / "keys", "k1")
    document = {"name": "hook", "target": {"kind": "webhook", "url": "https://r.example"}}
    sealed = sealing.seal_new(before, admin_of(fleet.tenant_id), RouteDefinition.model_validate(document))
    with fleet.units.begin(admin_of(fleet.tenant_id), routes.CREATE) as unit:
        route_id = routes.create(unit, sealed).id
    after = key_file(tmp_path / "keys", "k2", "k1")
    assert uses(fleet, after) == [("k2", True, True, 0), ("k1", False, True, 1)]
    done = rewrap_once(fleet.units, after)
    assert (done.num_rewrapped, done.num_left) == (1, 0)
    with fleet.units.read() as session:
        row = session.get_one(NotificationRoute, route_id)
    only_new = key_file(tmp_path / "keys", "k2")
    assert sealing.receiver_of(only_new, row).secrets == (sealed.secret,)
