"""The principals and the permissions of each role. Services require a permission; routes declare the same one."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muster.domain.errors import ForbiddenError
from muster.domain.ids import KeyId, NodeId, TenantId


class Role(StrEnum):
    TENANT_MEMBER = "tenant_member"
    TENANT_ADMIN = "tenant_admin"
    OPERATOR = "operator"
    AUDITOR = "auditor"
    NODE = "node"
    SERVICE = "service"


class Permission(StrEnum):
    JOB_SUBMIT = "job:submit"
    JOB_READ = "job:read"
    JOB_CANCEL = "job:cancel"
    LOG_READ = "log:read"
    KEY_READ = "key:read"
    KEY_WRITE = "key:write"
    TENANT_READ = "tenant:read"
    TENANT_WRITE = "tenant:write"
    NODE_READ = "node:read"
    NODE_WRITE = "node:write"
    GPU_READ = "gpu:read"
    GPU_WRITE = "gpu:write"
    INCIDENT_READ = "incident:read"
    INCIDENT_WRITE = "incident:write"
    EVENT_READ = "event:read"
    AUDIT_READ = "audit:read"
    SECRET_READ = "secret:read"  # noqa: S105  # the name of a permission
    SECRET_WRITE = "secret:write"  # noqa: S105  # the name of a permission
    SECRET_KEY_WRITE = "secret_key:write"  # noqa: S105  # the name of a permission
    ROUTE_READ = "route:read"
    ROUTE_WRITE = "route:write"
    POLICY_READ = "policy:read"
    POLICY_WRITE = "policy:write"
    METRICS_READ = "metrics:read"
    HOST_REPORT = "host:report"
    SYSTEM_RUN = "system:run"


_P = Permission
_TENANT_MEMBER = frozenset(
    {
        _P.JOB_SUBMIT,
        _P.JOB_READ,
        _P.JOB_CANCEL,
        _P.LOG_READ,
        _P.EVENT_READ,
        _P.ROUTE_READ,
        _P.SECRET_READ,
        _P.TENANT_READ,
    }
)
_AUDITOR = frozenset(
    {
        _P.AUDIT_READ,
        _P.EVENT_READ,
        _P.GPU_READ,
        _P.INCIDENT_READ,
        _P.JOB_READ,
        _P.KEY_READ,
        _P.METRICS_READ,
        _P.NODE_READ,
        _P.POLICY_READ,
        _P.ROUTE_READ,
        _P.TENANT_READ,
    }
)

ROLE_PERMISSIONS: Final[Mapping[Role, frozenset[Permission]]] = {
    Role.TENANT_MEMBER: _TENANT_MEMBER,
    Role.TENANT_ADMIN: _TENANT_MEMBER | {_P.AUDIT_READ, _P.KEY_READ, _P.KEY_WRITE, _P.ROUTE_WRITE, _P.SECRET_WRITE},
    Role.OPERATOR: frozenset(Permission) - {_P.HOST_REPORT, _P.SYSTEM_RUN},
    Role.AUDITOR: _AUDITOR,
    Role.NODE: frozenset({_P.HOST_REPORT}),
    Role.SERVICE: frozenset({_P.SYSTEM_RUN, _P.METRICS_READ}),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """A person or process that acts.

    A tenant's principal has ``tenant_id``; a node's has ``node_id``; a fleet-wide one has neither.
    """

    name: str
    role: Role
    key_id: KeyId | None = None
    tenant_id: TenantId | None = None
    node_id: NodeId | None = None
    address: str | None = None
    request_id: str | None = None

    @property
    def sees_all_tenants(self) -> bool:
        return self.tenant_id is None and self.role in {Role.OPERATOR, Role.AUDITOR, Role.SERVICE}

    def may(self, permission: Permission) -> bool:
        return permission in ROLE_PERMISSIONS[self.role]

    def require(self, permission: Permission) -> None:
        """Raise ``ForbiddenError`` with the name of the permission where the role lacks it."""
        if not self.may(permission):
            message = f"the role {self.role} does not hold {permission}"
            raise ForbiddenError(message, permission=str(permission))


def system_principal(component: str) -> Principal:
    """Return the control plane as a principal, named after the acting component (``scheduler``, ``reconciler``, …)."""
    return Principal(name=f"system:{component}", role=Role.SERVICE)
