"""A fleet, another tenant, and a key of each role: what tests of the API and of the console begin with."""

from collections.abc import Mapping
from dataclasses import dataclass

from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys, tenants
from muster.domain.ids import NodeId, TenantId
from muster.domain.principals import Role
from tests.fleet_factory import OPERATOR, Fleet, fleet_of, make_fleet


@dataclass(frozen=True)
class KeyedFleet:
    """``made``: keys by the name of their role, and ``other_tenant``."""

    tenant_id: TenantId
    node_id: NodeId
    other_tenant: TenantId
    made: Mapping[str, keys.NewKey]

    def fleet(self, units: UnitOfWorkFactory) -> Fleet:
        return fleet_of(units, self.tenant_id, self.node_id)

    @property
    def tokens(self) -> dict[str, str]:
        return {name: key.token.text for name, key in self.made.items()}


def make_keyed_fleet(units: UnitOfWorkFactory) -> KeyedFleet:
    fleet = make_fleet(units)
    with units.begin(OPERATOR, tenants.CREATE) as unit:
        other = tenants.create(unit, name="other").id
    wanted: dict[str, tuple[Role, TenantId | None, NodeId | None]] = {
        "tenant_member": (Role.TENANT_MEMBER, fleet.tenant_id, None),
        "tenant_admin": (Role.TENANT_ADMIN, fleet.tenant_id, None),
        "other_tenant": (Role.TENANT_ADMIN, other, None),
        "operator": (Role.OPERATOR, None, None),
        "auditor": (Role.AUDITOR, None, None),
        "node": (Role.NODE, None, fleet.node_id),
    }
    with units.begin(OPERATOR, keys.CREATE) as unit:
        made = {
            name: keys.create(unit, name=f"key-{name.replace('_', '-')}", role=role, tenant_id=tenant, node_id=node)
            for name, (role, tenant, node) in wanted.items()
        }
    return KeyedFleet(fleet.tenant_id, fleet.node_id, other, made)
