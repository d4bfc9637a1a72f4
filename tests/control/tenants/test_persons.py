"""A person of a tenant has a tenant, and an operator or auditor has none."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import persons, tenants
from muster.domain.errors import ValidationFailedError
from muster.domain.principals import Role
from tests.fleet_factory import OPERATOR


@pytest.mark.parametrize("role", [Role.TENANT_MEMBER, Role.TENANT_ADMIN])
def test_a_tenants_role_needs_a_tenant(units: UnitOfWorkFactory, role: Role) -> None:
    with pytest.raises(ValidationFailedError, match="tenant"), units.begin(OPERATOR, persons.CREATE) as unit:
        persons.create(unit, name="ada", role=role)


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.AUDITOR])
def test_a_role_of_the_fleet_has_none(units: UnitOfWorkFactory, role: Role) -> None:
    with units.begin(OPERATOR, tenants.CREATE) as unit:
        tenant_id = tenants.create(unit, name="lab").id
    with pytest.raises(ValidationFailedError, match="tenant"), units.begin(OPERATOR, persons.CREATE) as unit:
        persons.create(unit, name="ada", role=role, tenant_id=tenant_id)
    with units.begin(OPERATOR, persons.CREATE) as unit:
        assert persons.create(unit, name="ada", role=role).person.tenant_id is None
