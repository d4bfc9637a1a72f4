"""All callers, each with an API key and a session of the console: good, ended, or none at all."""

from dataclasses import dataclass
from datetime import timedelta
from itertools import count

from console.forms import csrf_token
from console.session import COOKIE
from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys
from control.tenants.sessions import resume, sign_in_by_key
from muster.domain.ids import NodeId, TenantId
from muster.domain.principals import Role
from tests.authorisation.estates import Estate, Estates
from tests.fleet_factory import OPERATOR

SECRET_KEY = b"x" * 32
LONG_AGO = timedelta(days=2)
_NUMBERS = count()


@dataclass(frozen=True)
class Caller:
    """``role`` is None for a caller without a good key. ``own``: whose objects are theirs; ``foreign``: whose are not.

    ``token`` and ``cookie`` are None where nothing is sent; ``csrf`` is what a page of the session would carry.
    """

    name: str
    role: Role | None
    own: Estate
    foreign: Estate
    token: str | None = None
    cookie: str | None = None
    csrf: str = ""

    @property
    def sees_all_tenants(self) -> bool:
        return self.role in {Role.OPERATOR, Role.AUDITOR}

    def headers(self, *, is_page: bool) -> dict[str, str]:
        if is_page:
            return {} if self.cookie is None else {"Cookie": f"{COOKIE}={self.cookie}"}
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def secrets_of_others(self, estates: Estates) -> frozenset[str]:
        """What no answer to them may hold."""
        if self.sees_all_tenants:
            return frozenset()
        others = self.foreign.secrets | estates.bystander
        return others if self.role is not None else others | self.own.secrets


def every_caller(estates: Estates) -> list[Caller]:
    a, b = estates.a, estates.b
    found = [
        Caller("anonymous", None, a, b),
        Caller("malformed", None, a, b, token="mst_not.a.key", cookie="mst_not.a.session"),
        _expired(estates),
        _revoked(estates),
    ]
    for name, role, own, foreign in (
        ("member of A", Role.TENANT_MEMBER, a, b),
        ("admin of A", Role.TENANT_ADMIN, a, b),
        ("member of B", Role.TENANT_MEMBER, b, a),
        ("admin of B", Role.TENANT_ADMIN, b, a),
        ("auditor", Role.AUDITOR, a, b),
        ("operator", Role.OPERATOR, a, b),
    ):
        tenant_id = own.tenant_id if role in {Role.TENANT_MEMBER, Role.TENANT_ADMIN} else None
        found.append(_signed_in(estates.units, Caller(name, role, own, foreign), tenant_id))
    token = _key(estates.units, Role.NODE, node_id=a.host.node_id).token.text
    return [*found, Caller("node", Role.NODE, a, b, token=token, cookie=token)]


def _key(
    units: UnitOfWorkFactory,
    role: Role,
    *,
    tenant_id: TenantId | None = None,
    node_id: NodeId | None = None,
    lives: timedelta | None = None,
) -> keys.NewKey:
    with units.begin(OPERATOR, keys.CREATE) as unit:
        ends = None if lives is None else unit.now + lives
        return keys.create(
            unit, name=f"calls-{next(_NUMBERS)}", role=role, tenant_id=tenant_id, node_id=node_id, expires_at=ends
        )


def _signed_in(units: UnitOfWorkFactory, caller: Caller, tenant_id: TenantId | None) -> Caller:
    assert caller.role is not None
    token = _key(units, caller.role, tenant_id=tenant_id).token.text
    cookie = sign_in_by_key(units, token, address=None).text
    session = resume(units, cookie, address=None, request_id=None)
    csrf = csrf_token(SECRET_KEY, session.session_id)
    return Caller(caller.name, caller.role, caller.own, caller.foreign, token, cookie, csrf)


def _expired(estates: Estates) -> Caller:
    """An operator's, good for a day, two days ago."""
    now = estates.units.clock()
    then = UnitOfWorkFactory(estates.units.engine, clock=lambda: now - LONG_AGO)
    token = _key(then, Role.OPERATOR, lives=LONG_AGO / 2).token.text
    return Caller("expired", None, estates.a, estates.b, token, sign_in_by_key(then, token, address=None).text)


def _revoked(estates: Estates) -> Caller:
    """An operator's, signed in, then revoked."""
    made = _key(estates.units, Role.OPERATOR)
    cookie = sign_in_by_key(estates.units, made.token.text, address=None).text
    with estates.units.begin(OPERATOR, keys.REVOKE) as unit:
        keys.revoke(unit, made.key.id)
    return Caller("revoked", None, estates.a, estates.b, made.token.text, cookie)
