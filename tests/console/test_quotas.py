"""The page of quotas: the tree of tenants with what each may hold and holds."""

import pytest

from control.tenants import quotas, tenants
from control.tenants.tenants import Place
from scheduler.quota.tenancy import Quota
from tests.console.conftest import Console
from tests.fleet_factory import OPERATOR


@pytest.fixture
def shared(seen: Console) -> Console:
    """The tenant is under a department, which may hold 8 GPUs on demand, 2 of them its own."""
    with seen.units.begin(OPERATOR, tenants.CREATE) as unit:
        department = tenants.create(unit, name="department").id
    with seen.units.begin(OPERATOR, tenants.PLACE) as unit:
        tenants.place(unit, seen.fleet.tenant_id, Place(parent_id=department), reason="test")
    with seen.units.begin(OPERATOR, quotas.SET) as unit:
        quotas.set_quota(unit, department, "on_demand", Quota(2, 4, 8), reason="test")
    return seen


def test_an_operator_reads_each_tenant_under_the_one_above_it_with_what_both_hold(shared: Console) -> None:
    page = shared.text("/console/quotas").partition("Ceiling")[2]
    assert "department on_demand 0 of 6 2 0 4 8" in page, page


def test_a_tenant_reads_its_own_alone(shared: Console) -> None:
    own = shared.text("/console/quotas", "tenant_member")
    assert "department" not in own
