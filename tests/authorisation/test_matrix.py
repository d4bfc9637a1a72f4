"""The matrix: each route, caller and owner of an object: the one right status, and no word of another tenant."""

import itertools
from collections.abc import Iterator

import pytest
from sqlalchemy import func, select

from control.core.sequencer import sequence_once
from control.tenants import keys
from muster.db.models import Event
from muster.domain.principals import Role
from tests.authorisation.callers import Caller
from tests.authorisation.conftest import House
from tests.authorisation.estates import WORDS, WRITTEN
from tests.authorisation.requesting import Answer
from tests.authorisation.routes import Row, Whose, read_table
from tests.fleet_factory import OPERATOR

TOO_LONG_FOR_ONE_MESSAGE = 60


def _questions(house: House) -> Iterator[tuple[Row, Whose, Caller]]:
    for row in read_table():
        for whose, caller in itertools.product(row.statuses, house.callers):
            yield row, whose, caller


@pytest.mark.timeout(1800)
def test_each_caller_gets_the_expected_status_and_no_word_of_another_tenant(house: House) -> None:
    faults, unseen = [], {f"{word}-{what}".encode() for word in WORDS for what in WRITTEN}
    refusals: dict[tuple[str, str, str], Answer] = {}
    for row, whose, caller in _questions(house):
        case = f"{row.method} {row.requested}, {whose}, {caller.name}"
        answer, expected = house.requesting.ask(row, caller, whose), row.expected(caller, whose)
        if answer.status != expected:
            faults.append(f"{case}: answered {answer.status}, and not {expected}: {answer.content[-200:]!r}")
        if leaks := answer.leaks(caller.secrets_of_others(house.estates)):
            faults.append(f"{case}: shows {', '.join(leaks)}")
        unseen = {words for words in unseen if words not in answer.content}
        if answer.status == 404 and not row.is_page:
            earlier = refusals.setdefault((row.method, row.requested, caller.name), answer)
            if earlier.reported() != answer.reported():
                faults.append(f"{case}: missing and foreign objects can be distinguished: {answer.reported()}")
    assert not faults, "\n".join([f"{len(faults)} faults:", *faults[:TOO_LONG_FOR_ONE_MESSAGE]])
    assert not unseen, f"no answer may hide what no answer could have shown: {sorted(unseen)}"


@pytest.mark.parametrize("name", ["member of A", "member of B"])
def test_a_stream_of_events_reports_a_tenant_of_its_own_and_nothing_of_another(house: House, name: str) -> None:
    caller = next(each for each in house.callers if each.name == name)
    with house.estates.units.read() as session:
        of_tenant = select(func.max(Event.position)).where(Event.tenant_id == caller.own.tenant_id)
        newest = session.scalar(of_tenant)
    where = "/v1/events/stream?after=0"
    told = house.requesting.follow(where, caller, until=f"id: {newest}\n".encode(), meanwhile=lambda: None)
    assert f"{caller.own.word}-regret".encode() in told
    assert not [secret for secret in caller.secrets_of_others(house.estates) if secret.encode() in told]


def test_a_page_of_a_tenant_receives_of_no_change_of_another(house: House) -> None:
    """The other's comes first, so it would have been sent by the time that one's own is."""
    caller = next(each for each in house.callers if each.name == "member of A")
    units = house.estates.units

    def change() -> None:
        for estate, name in ((caller.foreign, "tenant_admin"), (caller.own, "tenant_member")):
            with units.begin(OPERATOR, keys.CREATE) as unit:
                made = keys.create(unit, name="new", role=Role(name), tenant_id=estate.tenant_id)
            if estate is caller.foreign:
                with units.begin(OPERATOR, keys.REVOKE) as unit:
                    keys.revoke(unit, made.key.id)
        while sequence_once(units):
            pass

    told = house.requesting.follow("/console/live", caller, until=b"key.created", meanwhile=change)
    assert b"key.revoked" not in told
