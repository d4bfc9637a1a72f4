"""A name means one live key of its owner, so that a reader of a list knows which."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys, tenants
from local.bootstrap import key_file
from muster.db.models import ApiKey
from muster.domain.errors import ConflictError
from muster.domain.ids import TenantId
from muster.domain.principals import Role
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR


def made(units: UnitOfWorkFactory, name: str, tenant_id: TenantId | None = None, *, lives_s: int = 0) -> keys.NewKey:
    role = Role.AUDITOR if tenant_id is None else Role.TENANT_MEMBER
    with units.begin(OPERATOR, keys.CREATE) as unit:
        ends = unit.now + timedelta(seconds=lives_s) if lives_s else None
        return keys.create(unit, name=name, role=role, tenant_id=tenant_id, expires_at=ends)


def new_tenant(units: UnitOfWorkFactory, name: str) -> TenantId:
    with units.begin(OPERATOR, tenants.CREATE) as unit:
        return tenants.create(unit, name=name).id


def num_named(units: UnitOfWorkFactory, name: str) -> int:
    with units.read() as session:
        return session.scalar(select(func.count()).where(ApiKey.name == name)) or 0


def test_a_second_live_key_of_one_name_is_refused_by_the_first_ones_id(units: UnitOfWorkFactory) -> None:
    first = made(units, "ci")
    with pytest.raises(ConflictError) as refused:
        made(units, "ci")
    assert first.key.id in refused.value.detail
    assert f"mst_{first.key.prefix}" in refused.value.detail
    assert first.token.text not in refused.value.detail
    assert "revoke" in refused.value.suggestion
    assert refused.value.extra == {"key_id": first.key.id}
    assert num_named(units, "ci") == 1


def test_each_tenant_and_the_fleet_have_names_of_their_own(units: UnitOfWorkFactory) -> None:
    a, b = new_tenant(units, "a"), new_tenant(units, "b")
    for owner in (a, b, None):
        made(units, "ci", owner)
    for owner in (a, b, None):
        with pytest.raises(ConflictError):
            made(units, "ci", owner)


def test_a_revoked_key_and_an_expired_one_give_their_name_free(units: UnitOfWorkFactory, clock: SetClock) -> None:
    first = made(units, "ci")
    with units.begin(OPERATOR, keys.REVOKE) as unit:
        keys.revoke(unit, first.key.id)
    made(units, "ci", lives_s=60)
    with pytest.raises(ConflictError):
        made(units, "ci")
    clock.now += timedelta(seconds=61)
    made(units, "ci")
    assert num_named(units, "ci") == 3


def test_of_many_what_ask_at_once_one_gets_the_name(units: UnitOfWorkFactory) -> None:
    def ask(_number: int) -> bool:
        try:
            made(units, "ci")
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 1
    assert num_named(units, "ci") == 1


def test_a_local_key_whose_file_is_lost_is_made_again_next_to_the_one_that_lives_on(
    units: UnitOfWorkFactory, tmp_path: Path
) -> None:
    path = tmp_path / "operator.key"
    first = key_file(units, path, Role.OPERATOR).read_text()
    assert key_file(units, path, Role.OPERATOR).read_text() == first, "one that opens is kept"
    path.unlink()
    second = key_file(units, path, Role.OPERATOR).read_text()
    assert second != first
    with units.read() as session:
        names = session.scalars(select(ApiKey.name).order_by(ApiKey.name)).all()
    assert list(names) == ["local-operator", "local-operator-2"]
