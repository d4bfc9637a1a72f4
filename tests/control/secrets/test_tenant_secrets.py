"""A tenant sets, rotates and deletes secrets; what is stored is encrypted, and every change is in the record."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select, text

from control.core.paging import Part
from control.core.unit_of_work import UnitOfWorkFactory
from control.secrets import tenant_secrets
from control.secrets.key_file import FileKeys
from muster.db.models import AuditEntry, Event, Secret, SecretVersion, Tenant
from muster.domain.errors import (
    ConflictError,
    ForbiddenError,
    MusterError,
    NotFoundError,
    PreconditionFailedError,
    ValidationFailedError,
)
from muster.domain.ids import TenantId
from muster.domain.principals import Principal, Role
from tests.control.secrets.secret_case import admin_of, key_file, rotate_secret, set_secret
from tests.fleet_factory import OPERATOR, Fleet, make_fleet

VALUE = b"0f-acme-the-value"


@pytest.fixture
def keys(tmp_path: Path) -> FileKeys:
    return key_file(tmp_path / "keys", "k1")


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    return make_fleet(units)


def versions(units: UnitOfWorkFactory) -> list[tuple[int, int]]:
    with units.read() as session:
        rows = session.scalars(select(SecretVersion).order_by(SecretVersion.version))
        return [(row.version, row.num_bytes) for row in rows]


def test_a_secret_is_stored_encrypted_and_its_record_has_no_value(fleet: Fleet, keys: FileKeys) -> None:
    made = set_secret(fleet.units, keys, fleet.tenant_id, "hf-token", VALUE, "train")
    assert (made.name, made.version, made.jobs, made.created_by) == ("hf-token", 1, ["train"], "key:admin")
    with fleet.units.read() as session:
        stored = session.scalars(select(SecretVersion)).one()
        told = [
            *session.scalars(select(AuditEntry.action).where(AuditEntry.subject_id == made.id)),
            *session.scalars(select(Event.kind).where(Event.subject_id == made.id)),
        ]
    assert (stored.key_id, stored.num_bytes) == ("k1", len(VALUE))
    assert VALUE not in stored.sealed + stored.wrapped_key
    assert told == ["secret.create", "secret.created"]


def test_the_next_value_is_a_version_and_one_before_it_is_kept(fleet: Fleet, keys: FileKeys) -> None:
    made = set_secret(fleet.units, keys, fleet.tenant_id, "hf-token", b"1")
    for value in (b"22", b"333"):
        made = rotate_secret(fleet.units, keys, made, value)
    assert (made.version, made.rotated_at is not None) == (3, True)
    assert versions(fleet.units) == [(2, 2), (3, 3)]


def test_of_two_rotations_at_once_one_is_refused(fleet: Fleet, keys: FileKeys) -> None:
    made = set_secret(fleet.units, keys, fleet.tenant_id, "hf-token", b"1")
    admin = admin_of(fleet.tenant_id)
    both = [tenant_secrets.seal_next(fleet.units, keys, admin, made.id, value) for value in (b"22", b"333")]

    def store(value: tenant_secrets.SealedValue) -> str:
        try:
            with fleet.units.begin(admin, tenant_secrets.ROTATE) as unit:
                return str(tenant_secrets.rotate(unit, value).version)
        except ConflictError as fault:
            return fault.detail

    with ThreadPoolExecutor(2) as threads:
        told = sorted(threads.map(store, both))
    assert told[0] == "2"
    assert "rotated by another request at the same time" in told[1]
    assert [version for version, _ in versions(fleet.units)] == [1, 2]


def test_a_second_secret_of_a_name_is_refused_with_what_to_do(fleet: Fleet, keys: FileKeys) -> None:
    set_secret(fleet.units, keys, fleet.tenant_id, "hf-token", VALUE)
    with pytest.raises(ConflictError) as refused:
        set_secret(fleet.units, keys, fleet.tenant_id, "hf-token", b"another")
    assert "muster secret rotate" in refused.value.suggestion


@pytest.mark.parametrize(("size", "code"), [(0, "empty"), ((64 << 10) + 1, "too_long"), (1 << 20, "too_long")])
def test_a_value_that_is_empty_or_too_long_is_refused(fleet: Fleet, keys: FileKeys, size: int, code: str) -> None:
    with pytest.raises(ValidationFailedError) as refused:
        set_secret(fleet.units, keys, fleet.tenant_id, "big", b"x" * size)
    fault = refused.value.faults[0]
    assert (fault.pointer, fault.code) == ("/value", code)
    assert not size or f"{size:,} bytes; a secret may have 65,536 (64 KiB)" in fault.detail
    assert set_secret(fleet.units, keys, fleet.tenant_id, "big", b"x" * (64 << 10)).version == 1


def test_a_deleted_secret_leaves_no_value(fleet: Fleet, keys: FileKeys) -> None:
    made = set_secret(fleet.units, keys, fleet.tenant_id, "hf-token", VALUE)
    admin = admin_of(fleet.tenant_id)
    with (
        pytest.raises(PreconditionFailedError),
        fleet.units.begin(admin, tenant_secrets.DELETE) as unit,
    ):
        tenant_secrets.delete(unit, made.id, expected_version=7)
    with fleet.units.begin(admin, tenant_secrets.DELETE) as unit:
        tenant_secrets.delete(unit, made.id, expected_version=1)
    assert versions(fleet.units) == []
    assert set_secret(fleet.units, keys, fleet.tenant_id, "hf-token", b"new").version == 1


def test_the_secrets_of_a_deleted_tenant_go_with_it(fleet: Fleet, keys: FileKeys) -> None:
    with fleet.units.begin(OPERATOR, tenant_secrets.CREATE, quiet=True) as unit:
        unit.session.add(Tenant(id=TenantId("ten_gone"), name="gone", created_at=unit.now))
    first = tenant_secrets.seal_first(keys, admin_of(TenantId("ten_gone")), "token", VALUE)
    set_secret(fleet.units, keys, TenantId("ten_gone"), "other", VALUE)
    set_secret(fleet.units, keys, fleet.tenant_id, "stays", VALUE)
    with fleet.units.engine.begin() as connection:
        connection.execute(text("DELETE FROM tenants WHERE id = 'ten_gone'"))
    with fleet.units.read() as session:
        assert list(session.scalars(select(Secret.name))) == ["stays"]
    assert len(versions(fleet.units)) == 1
    # One that was sealed before, and comes after.
    with (
        pytest.raises(ValidationFailedError, match="no such tenant"),
        fleet.units.begin(admin_of(TenantId("ten_gone")), tenant_secrets.CREATE) as unit,
    ):
        tenant_secrets.create(unit, first)


def test_a_member_lists_names_and_changes_nothing_and_others_see_nothing(fleet: Fleet, keys: FileKeys) -> None:
    made = set_secret(fleet.units, keys, fleet.tenant_id, "hf-token", VALUE)
    member = Principal(name="key:member", role=Role.TENANT_MEMBER, tenant_id=fleet.tenant_id)
    stranger = admin_of(TenantId("ten_other"))
    auditor = Principal(name="key:auditor", role=Role.AUDITOR)

    def listed(reader: Principal) -> list[str]:
        with fleet.units.begin(reader, tenant_secrets.READ) as unit:
            return [secret.name for secret in tenant_secrets.list_secrets(unit, Part(10))]

    def deleted(by: Principal) -> type[MusterError]:
        try:
            with fleet.units.begin(by, tenant_secrets.DELETE) as unit:
                tenant_secrets.delete(unit, made.id)
        except MusterError as fault:
            return type(fault)
        raise AssertionError("it was deleted")

    assert (listed(member), listed(stranger), listed(OPERATOR)) == (["hf-token"], [], ["hf-token"])
    with pytest.raises(ForbiddenError):
        listed(auditor)
    assert [deleted(by) for by in (member, stranger, auditor)] == [ForbiddenError, NotFoundError, ForbiddenError]
    with pytest.raises(ForbiddenError):
        tenant_secrets.seal_first(keys, member, "mine", b"x")
    with pytest.raises(NotFoundError):
        tenant_secrets.seal_next(fleet.units, keys, stranger, made.id, b"x")
