"""One rule of visibility, in one module: which principals may read the rows of which tenant."""

import ast
from pathlib import Path

import pytest
from sqlalchemy.dialects import postgresql

from control.core.visibility import may_see, only_tenant_of, visible_rows
from muster.db.models import Reclaim
from muster.domain.errors import ForbiddenError
from muster.domain.ids import NodeId, TenantId
from muster.domain.principals import Principal, Role, system_principal

ROOT = Path(__file__).resolve().parents[3]
ACME, OTHER = TenantId("ten_acme"), TenantId("ten_other")
MEMBER = Principal(name="mia", role=Role.TENANT_MEMBER, tenant_id=ACME)
NODE = Principal(name="node", role=Role.NODE, node_id=NodeId("node_1"))
OF_ALL = [Principal(name="olga", role=Role.OPERATOR), Principal(name="ada", role=Role.AUDITOR), system_principal("api")]


def _sql(principal: Principal) -> str:
    condition = visible_rows(principal, Reclaim.victim_tenant_id, Reclaim.beneficiary_tenant_id)
    return str(condition.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True}))  # type: ignore[no-untyped-call]  # SQLAlchemy's


@pytest.mark.parametrize("principal", OF_ALL, ids=lambda principal: principal.role)
def test_a_role_of_the_whole_fleet_reads_the_rows_of_all_tenants(principal: Principal) -> None:
    assert may_see(principal, ACME)
    assert may_see(principal, None)
    assert only_tenant_of(principal) is None
    assert _sql(principal) == "true"


def test_a_tenant_reads_the_rows_of_its_own_alone() -> None:
    assert may_see(MEMBER, ACME)
    assert not may_see(MEMBER, OTHER)
    assert not may_see(MEMBER, None)
    assert only_tenant_of(MEMBER) == ACME
    assert _sql(MEMBER) == "reclaims.victim_tenant_id = 'ten_acme' OR reclaims.beneficiary_tenant_id = 'ten_acme'"


def test_a_node_reads_the_rows_of_no_tenant() -> None:
    assert not may_see(NODE, ACME)
    with pytest.raises(ForbiddenError):
        only_tenant_of(NODE)


def test_no_other_module_of_control_api_and_console_compares_tenants_itself() -> None:
    """A comparison with the caller's tenant outside the module would be a second rule."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("control", "api", "console")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and any(_is_tenant_of_caller(side) for side in (node.left, *node.comparators))
        if any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops)
    ]
    assert {place.split(":")[0] for place in found} == {"control/core/visibility.py"}, found


def _is_tenant_of_caller(side: ast.expr) -> bool:
    return ast.unparse(side).endswith("principal.tenant_id")
