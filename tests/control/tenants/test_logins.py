"""Sign-ins of the command: confirmed once by a session, bounded in time, valid as long as what confirmed them."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from argon2 import PasswordHasher
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys, logins, persons, sessions, tenants
from control.tenants.sessions import SignedIn
from muster.db.models import ApiKey, AuditEntry, CommandLogin
from muster.domain.errors import MusterError, NotFoundError, RateLimitedError, UnauthenticatedError
from muster.domain.ids import TenantId
from muster.domain.logins import (
    KEY_LIFETIME,
    LIFETIME,
    OPEN_OF_NETWORK,
    TAKEN_WITHIN,
    LoginState,
    code_in,
    shown_code,
)
from muster.domain.principals import Role
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR

ADDRESS = "192.0.2.7"


@pytest.fixture(autouse=True)
def _quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(persons, "HASHER", quick)
    monkeypatch.setattr(sessions, "HASHER", quick)


@dataclass(frozen=True)
class Member:
    """A member of a tenant: without the right to make keys, and with a session by password."""

    person_id: str
    tenant_id: TenantId
    signed_in: SignedIn


@pytest.fixture
def member(units: UnitOfWorkFactory) -> Member:
    with units.begin(OPERATOR, tenants.CREATE) as unit:
        tenant_id = tenants.create(unit, name="lab").id
    with units.begin(OPERATOR, persons.CREATE) as unit:
        made = persons.create(unit, name="nora", role=Role.TENANT_MEMBER, tenant_id=tenant_id)
    token = sessions.sign_in_by_password(units, "nora", made.password, address=ADDRESS)
    return Member(made.person.id, tenant_id, resumed(units, token.text))


def resumed(units: UnitOfWorkFactory, text: str) -> SignedIn:
    return sessions.resume(units, text, address=ADDRESS, request_id=None)


def begun(units: UnitOfWorkFactory, address: str = ADDRESS) -> logins.StartedLogin:
    return logins.begin(units, device="nora on laptop", address=address)


def decided(units: UnitOfWorkFactory, code: str, by: SignedIn, *, is_confirmed: bool = True) -> None:
    with units.begin(by.principal, logins.DECIDE) as unit:
        logins.decide(unit, code, session_id=by.session_id, is_confirmed=is_confirmed)


def taken(units: UnitOfWorkFactory, started: logins.StartedLogin) -> logins.Taken:
    return logins.take(units, started.token.text, address=ADDRESS, request_id=None)


def key_by(units: UnitOfWorkFactory, by: SignedIn) -> str:
    started = begun(units)
    decided(units, started.login.code, by)
    made = taken(units, started).made
    assert made is not None
    return made.token.text


def opens(units: UnitOfWorkFactory, text: str) -> bool:
    try:
        keys.authenticate(units, text, address=None, request_id=None)
    except UnauthenticatedError:
        return False
    return True


def test_a_confirmed_code_gives_one_key_with_the_role_of_the_person(units: UnitOfWorkFactory, member: Member) -> None:
    started = begun(units)
    assert taken(units, started).state is LoginState.PENDING
    decided(units, started.login.code, member.signed_in)
    found = taken(units, started)
    assert (found.state, found.made is not None) == (LoginState.CONFIRMED, True)
    assert found.made is not None
    key = found.made.key
    assert (key.role, key.tenant_id) == (Role.TENANT_MEMBER, member.tenant_id)
    assert key.expires_at == units.clock() + KEY_LIFETIME
    principal = keys.authenticate(units, found.made.token.text, address=None, request_id=None)
    assert (principal.role, principal.tenant_id) == (Role.TENANT_MEMBER, member.tenant_id)
    with pytest.raises(UnauthenticatedError, match="was used"):
        taken(units, started)


def test_confirmation_and_key_are_audited_as_the_persons(units: UnitOfWorkFactory, member: Member) -> None:
    key_by(units, member.signed_in)
    with units.read() as session:
        entries = session.scalars(select(AuditEntry).where(AuditEntry.tenant_id == member.tenant_id)).all()
    made = {entry.action: entry for entry in entries if entry.action in {"login.confirm", "key.create"}}
    assert made.keys() == {"login.confirm", "key.create"}
    assert all(entry.actor.startswith("person:nora") for entry in made.values())
    assert made["login.confirm"].detail == {"device": "nora on laptop", "address": ADDRESS}


def test_a_denied_code_gives_none_and_is_used_up(units: UnitOfWorkFactory, member: Member) -> None:
    started = begun(units)
    decided(units, started.login.code, member.signed_in, is_confirmed=False)
    assert taken(units, started) == logins.Taken(LoginState.DENIED)
    with pytest.raises(NotFoundError):
        decided(units, started.login.code, member.signed_in)


def test_a_code_is_confirmed_once_and_in_time(units: UnitOfWorkFactory, member: Member, clock: SetClock) -> None:
    once, late = begun(units), begun(units)
    decided(units, once.login.code, member.signed_in)
    with pytest.raises(NotFoundError, match="no sign-in waits"):
        decided(units, once.login.code, member.signed_in)
    clock.advance(LIFETIME.total_seconds())
    with pytest.raises(NotFoundError):
        decided(units, late.login.code, member.signed_in)
    assert taken(units, late).state is LoginState.EXPIRED


def test_a_key_is_fetched_soon_after_the_confirmation(
    units: UnitOfWorkFactory, member: Member, clock: SetClock
) -> None:
    started = begun(units)
    decided(units, started.login.code, member.signed_in)
    clock.advance(TAKEN_WITHIN.total_seconds() + 1)
    assert taken(units, started) == logins.Taken(LoginState.EXPIRED)


def test_of_eight_that_fetch_at_once_one_gets_the_key(units: UnitOfWorkFactory, member: Member) -> None:
    started = begun(units)
    decided(units, started.login.code, member.signed_in)

    def fetch(_number: int) -> logins.Taken | MusterError:
        try:
            return taken(units, started)
        except MusterError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(fetch, range(8)))
    assert len([each for each in found if isinstance(each, logins.Taken)]) == 1
    with units.read() as session:
        assert len(session.scalars(select(ApiKey).where(ApiKey.name.like("command-%"))).all()) == 1


def test_the_code_alone_fetches_nothing(units: UnitOfWorkFactory, member: Member) -> None:
    started, other = begun(units), begun(units)
    decided(units, started.login.code, member.signed_in)
    for text in ("", started.login.code, "mst_none", f"{started.token.text[:-1]}0"):
        with pytest.raises(UnauthenticatedError):
            logins.take(units, text, address=ADDRESS, request_id=None)
    assert taken(units, other).state is LoginState.PENDING


def test_the_key_ends_with_the_person(units: UnitOfWorkFactory, member: Member) -> None:
    text = key_by(units, member.signed_in)
    assert opens(units, text)
    with units.begin(OPERATOR, persons.DISABLE) as unit:
        persons.disable(unit, member.person_id)
    assert not opens(units, text)


def test_a_new_password_ends_it_too(units: UnitOfWorkFactory, member: Member) -> None:
    text = key_by(units, member.signed_in)
    with units.begin(OPERATOR, persons.RESET) as unit:
        persons.reset_password(unit, member.person_id)
    assert not opens(units, text)


def test_a_person_that_is_disabled_before_the_command_fetches_it_gets_no_key(
    units: UnitOfWorkFactory, member: Member
) -> None:
    started = begun(units)
    decided(units, started.login.code, member.signed_in)
    with units.begin(OPERATOR, persons.DISABLE) as unit:
        persons.disable(unit, member.person_id)
    with pytest.raises(UnauthenticatedError):
        taken(units, started)


def test_by_a_session_of_a_key_the_new_one_ends_with_that_key_and_lives_no_longer(
    units: UnitOfWorkFactory, member: Member
) -> None:
    ends_at = units.clock() + KEY_LIFETIME / 10
    with units.begin(OPERATOR, keys.CREATE) as unit:
        parent = keys.create(unit, name="ci", role=Role.TENANT_ADMIN, tenant_id=member.tenant_id, expires_at=ends_at)
    by_key = resumed(units, sessions.sign_in_by_key(units, parent.token.text, address=None).text)
    text = key_by(units, by_key)
    child = key_by(units, resumed(units, sessions.sign_in_by_key(units, text, address=None).text))
    with units.read() as session:
        made = session.scalars(select(ApiKey).where(ApiKey.name.like("command-%"))).all()
    assert [key.expires_at for key in made] == [ends_at, ends_at]
    with units.begin(OPERATOR, keys.REVOKE) as unit:
        keys.revoke(unit, parent.key.id)
    assert [opens(units, each) for each in (parent.token.text, text, child)] == [False, False, False]


def test_signing_out_revokes_the_key_of_a_sign_in_and_no_other(units: UnitOfWorkFactory, member: Member) -> None:
    text = key_by(units, member.signed_in)
    with units.begin(OPERATOR, keys.CREATE) as unit:
        own = keys.create(unit, name="own", role=Role.TENANT_ADMIN, tenant_id=member.tenant_id).token.text
    for token, is_revoked in ((text, True), (own, False)):
        principal = keys.authenticate(units, token, address=None, request_id=None)
        with units.begin(principal, logins.SIGN_OUT) as unit:
            assert logins.sign_out(unit) is is_revoked
        assert opens(units, token) is not is_revoked


def test_no_more_than_so_many_codes_of_an_address_wait_and_old_ones_go(
    units: UnitOfWorkFactory, member: Member, clock: SetClock
) -> None:
    for _ in range(OPEN_OF_NETWORK - 1):
        begun(units)
    decided(units, begun(units).login.code, member.signed_in, is_confirmed=False)
    begun(units)  # a decided code does not wait
    with pytest.raises(RateLimitedError, match="from this address"):
        begun(units)
    begun(units, "192.0.2.8")
    clock.advance(LIFETIME.total_seconds() + logins.KEPT.total_seconds() + 1)
    begun(units)
    with units.read() as session:
        assert len(session.scalars(select(CommandLogin)).all()) == 1


def test_a_caller_with_many_addresses_locks_no_one_out(
    units: UnitOfWorkFactory, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "OPEN_MAX", 6)
    own = begun(units)
    first, *others = [begun(units, address) for address in ("198.51.100.1", "198.51.100.1", *"abc")]
    begun(units, "203.0.113.5")
    with pytest.raises(UnauthenticatedError, match="unknown"):
        taken(units, first)
    assert [taken(units, each).state for each in (own, *others)] == [LoginState.PENDING] * 5
    decided(units, own.login.code, member.signed_in)
    assert taken(units, own).state is LoginState.CONFIRMED


def test_the_token_is_not_stored_in_clear(units: UnitOfWorkFactory) -> None:
    started = begun(units)
    with units.read() as session:
        row = session.scalars(select(CommandLogin)).one()
    assert started.token.text not in repr(vars(row))
    assert re.fullmatch(r"[B-Z]{8}", row.code), "a code alone opens nothing, so it is stored as it is"


@pytest.mark.parametrize("typed", ["bcdf-ghjk", "BCDFGHJK", " bcdf ghjk "])
def test_a_code_is_typed_in_any_way(typed: str) -> None:
    assert code_in(typed) == "BCDFGHJK"
    assert shown_code("BCDFGHJK") == "BCDF-GHJK"


@pytest.mark.parametrize("typed", ["", "BCDF", "BCDF-GHJK-L", "B" * 1000])
def test_another_text_is_no_code(typed: str) -> None:
    assert code_in(typed) is None
