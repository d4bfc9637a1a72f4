"""First contents of a new local stack: keys, a tenant, its policy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.policy import policies
from control.tenants import keys, persons, tenants
from muster.db.models import Person, Tenant
from muster.domain.errors import UnauthenticatedError
from muster.domain.ids import NodeId, TenantId
from muster.domain.policy.document import Policy
from muster.domain.principals import Principal, Role
from muster.durable import write_durably

TENANT_NAME: Final = "demo"
FIRST_PERSON: Final = "operator"
OPERATOR: Final = Principal(name="operator:local-stack", role=Role.OPERATOR)
BOOTSTRAP: Final = Principal(name="operator:bootstrap", role=Role.OPERATOR)
"""The person who holds the address of the database, where no operator has a key yet."""


@dataclass(frozen=True, slots=True)
class LocalIdentities:
    tenant_id: TenantId
    operator_key_file: Path
    tenant_key_file: Path
    operator_password: str | None = None
    """Password of the console's first person, where this start created the account: shown once, and stored nowhere."""


def bootstrap(units: UnitOfWorkFactory, folder: Path, *, policy: Policy, policy_name: str) -> LocalIdentities:
    """Make what is missing; a second start changes nothing. Keys are stored in ``folder``, mode 0600."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    tenant_id = _tenant(units)
    with units.begin(OPERATOR, policies.ACTIVATE) as unit:
        if policies.active_policy(unit.session) != policy:
            policies.store_policy(unit, policy, reason=f"the local stack runs under {policy_name}")
    return LocalIdentities(
        tenant_id=tenant_id,
        operator_key_file=key_file(units, folder / "operator.key", Role.OPERATOR),
        tenant_key_file=key_file(units, folder / "tenant.key", Role.TENANT_ADMIN, tenant_id=tenant_id),
        operator_password=_first_person(units),
    )


def _first_person(units: UnitOfWorkFactory) -> str | None:
    """Return the password of a new person ``operator``; None where the console has a person already."""
    with units.begin(OPERATOR, persons.CREATE) as unit:
        if unit.session.scalar(select(Person.id).limit(1)) is not None:
            return None
        return persons.create(unit, name=FIRST_PERSON, role=Role.OPERATOR).password


def _tenant(units: UnitOfWorkFactory) -> TenantId:
    with units.begin(OPERATOR, tenants.CREATE) as unit:
        existing = unit.session.scalar(select(Tenant.id).where(Tenant.name == TENANT_NAME))
        return existing or tenants.create(unit, name=TENANT_NAME).id


def key_file(
    units: UnitOfWorkFactory,
    path: Path,
    role: Role,
    *,
    tenant_id: TenantId | None = None,
    node_id: NodeId | None = None,
    name: str | None = None,
    by: Principal = OPERATOR,
) -> Path:
    """Return the key in ``path``, if it is still valid; else a new one.

    Its name has a number where the name is taken.
    """
    try:
        keys.authenticate(units, path.read_text(encoding="ascii").strip(), address=None, request_id=None)
    except (FileNotFoundError, UnauthenticatedError, UnicodeDecodeError):
        with units.begin(by, keys.CREATE) as unit:
            name = name or f"local-{role.replace('_', '-')}"
            # A key whose file is lost stays valid: a person may hold a copy of it.
            name = keys.free_name(unit, name, tenant_id=tenant_id, node_id=node_id)
            made = keys.create(unit, name=name, role=role, tenant_id=tenant_id, node_id=node_id)
        write_durably(path, made.token.text.encode("ascii") + b"\n")
    return path
