"""One unit of work: everything or nothing, with its traces, and honest errors when the database fails it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, func, select, text, update

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from muster.db.engine import SessionLimits, make_engine
from muster.db.errors import ContentionError
from muster.db.models import AuditEntry, Base, Event, OutboxMessage, Tenant
from muster.db.notifications import Notifications
from muster.db.sessions import note_change
from muster.domain.errors import UnavailableError
from muster.domain.ids import KeyId, TenantId
from muster.domain.principals import Principal, Role, system_principal
from muster.failpoints import FailpointError, arming
from muster.identity import new_id

ACTION = declare_action("test.enrol")
OPERATOR = Principal(name="olga", role=Role.OPERATOR, key_id=KeyId("key_1"), address="10.0.0.1", request_id="req_1")
SYSTEM = system_principal("test")
TRACES = (Tenant, Event, AuditEntry, OutboxMessage)


def enrol(unit: UnitOfWork, name: str = "acme") -> Tenant:
    tenant = Tenant(id=TenantId(new_id("tenant")), name=name, created_at=unit.now)
    unit.session.add(tenant)
    unit.emit("tenant.enrolled", "tenant", tenant.id, tenant_id=tenant.id, payload={"name": name})
    unit.audit("tenant.enrol", "tenant", tenant.id, tenant_id=tenant.id, reason="new customer")
    unit.enqueue("webhook", tenant.id, {"name": name})
    return tenant


def counts(units: UnitOfWorkFactory) -> list[int]:
    with units.read() as session:
        return [session.scalars(select(func.count()).select_from(table)).one() for table in TRACES]


def test_state_and_traces_commit_together(units: UnitOfWorkFactory) -> None:
    with units.begin(OPERATOR, ACTION) as unit:
        tenant = enrol(unit)
    assert counts(units) == [1, 1, 1, 1]
    with units.read() as session:
        event = session.scalars(select(Event)).one()
        entry = session.scalars(select(AuditEntry)).one()
    assert (event.kind, event.subject_id, event.at, event.caused_by) == (
        "tenant.enrolled",
        tenant.id,
        unit.now,
        entry.id,
    )
    assert (entry.actor, entry.actor_key_id, entry.address, entry.request_id) == ("olga", "key_1", "10.0.0.1", "req_1")
    assert tenant.name == "acme", "readable after the end"


def test_an_exception_leaves_nothing(units: UnitOfWorkFactory) -> None:
    def fail_half_way() -> None:
        with units.begin(OPERATOR, ACTION) as unit:
            enrol(unit)
            unit.session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert counts(units) == [0, 0, 0, 0]


def test_a_dry_run_states_what_would_happen_and_leaves_nothing(units: UnitOfWorkFactory) -> None:
    with units.begin(OPERATOR, ACTION, dry_run=True) as unit:
        tenant = enrol(unit)
    assert counts(units) == [0, 0, 0, 0]
    assert tenant.name == "acme"
    assert [(item["type"], item.get("kind", item.get("topic"))) for item in unit.consequences] == [
        ("event", "tenant.enrolled"),
        ("message", "webhook"),
    ]


def test_a_dry_run_fails_where_the_real_one_would(units: UnitOfWorkFactory) -> None:
    with units.begin(OPERATOR, ACTION) as unit:
        enrol(unit)
    with pytest.raises(Exception, match="uq_tenants_name"), units.begin(OPERATOR, ACTION, dry_run=True) as unit:
        enrol(unit)


def test_a_change_without_a_trace_is_a_bug(units: UnitOfWorkFactory) -> None:
    with pytest.raises(AssertionError, match="I18"), units.begin(SYSTEM, ACTION) as unit:
        unit.session.add(Tenant(id=TenantId("ten_1"), name="silent", created_at=unit.now))
    with pytest.raises(AssertionError, match="I18"), units.begin(SYSTEM, ACTION) as unit:
        unit.session.execute(update(Tenant).values(name="other"))
    with pytest.raises(AssertionError, match="I18"), units.begin(SYSTEM, ACTION) as unit:
        note_change(unit.session)
    assert counts(units)[0] == 0


def test_a_person_leaves_an_audit_entry_and_the_system_an_event(units: UnitOfWorkFactory) -> None:
    def enrol_with_an_event_alone(principal: Principal) -> None:
        with units.begin(principal, ACTION) as unit:
            unit.session.add(Tenant(id=TenantId("ten_1"), name="a", created_at=unit.now))
            unit.emit("tenant.enrolled", "tenant", "ten_1")

    with pytest.raises(AssertionError, match="audit"):
        enrol_with_an_event_alone(OPERATOR)
    enrol_with_an_event_alone(SYSTEM)
    assert counts(units) == [1, 1, 0, 0]


def test_a_quiet_unit_and_one_that_only_reads_need_no_trace(units: UnitOfWorkFactory) -> None:
    with units.begin(SYSTEM, ACTION, quiet=True) as unit:
        unit.session.add(Tenant(id=TenantId("ten_1"), name="a", created_at=unit.now))
    with units.begin(SYSTEM, ACTION) as unit:
        assert unit.session.get_one(Tenant, "ten_1").name == "a"


def test_an_undeclared_action_is_refused(units: UnitOfWorkFactory) -> None:
    with pytest.raises(AssertionError, match="declare_action"):
        units.begin(SYSTEM, "test.undeclared")


def test_failpoints_stand_before_and_after_the_commit(units: UnitOfWorkFactory) -> None:
    with pytest.raises(FailpointError), arming("test.enrol.before_commit=raise"), units.begin(OPERATOR, ACTION) as unit:
        enrol(unit)
    assert counts(units) == [0, 0, 0, 0]
    with pytest.raises(FailpointError), arming("test.enrol.after_commit=raise"), units.begin(OPERATOR, ACTION) as unit:
        enrol(unit)
    assert counts(units) == [1, 1, 1, 1]


def test_a_commit_wakes_whoever_listens(units: UnitOfWorkFactory) -> None:
    with (
        Notifications(units.engine, "muster_outbox") as outbox,
        Notifications(units.engine, "muster_scheduler") as scheduler,
    ):
        assert not outbox.wait(0.01)
        assert not scheduler.wait(0.01)
        with units.begin(OPERATOR, ACTION) as unit:
            enrol(unit)
        assert outbox.wait(60)
        assert not scheduler.wait(0.05)


def test_a_reader_cannot_write(units: UnitOfWorkFactory) -> None:
    with pytest.raises(UnavailableError), units.read() as session:
        session.execute(update(Tenant).values(name="x"))


def test_events_of_one_unit_keep_their_order(units: UnitOfWorkFactory) -> None:
    with units.begin(SYSTEM, ACTION) as unit:
        for number in range(50):
            unit.emit("test.counted", "tenant", "ten_1", payload={"number": number})
    with units.read() as session:
        ordered = session.scalars(select(Event).order_by(Event.serial)).all()
    assert [event.payload["number"] for event in ordered] == list(range(50))


def test_a_deadlock_is_retried_until_both_succeed(units: UnitOfWorkFactory) -> None:
    with units.begin(OPERATOR, ACTION) as unit:
        ids = [enrol(unit, name).id for name in ("a", "b")]
    meeting = threading.Barrier(2)
    met = threading.local()
    tries: list[int] = []

    def touch(order: list[TenantId]) -> None:
        with units.begin(SYSTEM, ACTION) as unit:
            tries.append(1)
            unit.session.get_one(Tenant, order[0], with_for_update=True)
            if not getattr(met, "once", False):
                met.once = True
                meeting.wait(60)
            unit.session.get_one(Tenant, order[1], with_for_update=True)
            unit.emit("test.touched", "tenant", order[0])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda order: retrying(lambda: touch(order)), [ids, ids[::-1]]))
    # Three, or more: the one that begins again may lock its first row before the other has woken.
    assert len(tries) > 2, "one of the two had to begin again"
    assert counts(units)[1] == 4


def test_retrying_gives_up_after_its_attempts() -> None:
    tries: list[float] = []

    def always() -> None:
        raise ContentionError

    with pytest.raises(ContentionError):
        retrying(always, attempts=5, sleep=tries.append)
    assert len(tries) == 4
    assert all(pause <= 0.02 * 2**number for number, pause in enumerate(tries))


def test_a_server_that_is_not_there_is_unavailable() -> None:
    units = UnitOfWorkFactory(make_engine("postgresql://nobody@127.0.0.1:1/nothing"))
    with pytest.raises(UnavailableError) as caught, units.begin(SYSTEM, ACTION) as unit:
        unit.session.get(Tenant, "ten_1")
    assert caught.value.retry_after_s == 1
    with pytest.raises(UnavailableError), units.read():
        pass


def test_a_slow_statement_and_a_kept_lock_are_unavailable(units: UnitOfWorkFactory, database_url: str) -> None:
    hasty = make_engine(database_url, limits=SessionLimits(statement_ms=200, lock_ms=50))
    hurried = UnitOfWorkFactory(hasty)
    with pytest.raises(UnavailableError), hurried.begin(SYSTEM, ACTION) as unit:
        unit.session.execute(text("SELECT pg_sleep(5)"))
    with units.begin(SYSTEM, ACTION) as holder:
        holder.session.execute(text("LOCK TABLE tenants"))
        with pytest.raises(UnavailableError), hurried.begin(SYSTEM, ACTION) as unit:
            unit.session.get(Tenant, "ten_1")
    hasty.dispose()


def test_a_connection_cut_in_the_middle_is_unavailable_and_the_next_unit_works(
    units: UnitOfWorkFactory, engine: Engine
) -> None:
    def be_cut_off() -> None:
        with units.begin(OPERATOR, ACTION) as unit:
            enrol(unit)
            mine = unit.session.scalars(text("SELECT pg_backend_pid()")).one()
            with engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 2000)"), {"pid": mine})

    with pytest.raises(UnavailableError):
        be_cut_off()
    assert counts(units) == [0, 0, 0, 0]
    with units.begin(OPERATOR, ACTION) as unit:
        enrol(unit)
    assert counts(units) == [1, 1, 1, 1]


def test_an_exhausted_pool_is_unavailable(database_url: str) -> None:
    small = make_engine(database_url, pool_size=1, max_overflow=0)
    units = UnitOfWorkFactory(small)
    with units.read(), pytest.raises(UnavailableError, match="in use"), units.read():
        pass
    small.dispose()


def test_no_relationship_loads_by_itself() -> None:
    strategies = {relationship.lazy for mapper in Base.registry.mappers for relationship in mapper.relationships}
    assert strategies == {"raise"}


def test_an_event_after_a_message_is_the_last_of_the_events(units: UnitOfWorkFactory) -> None:
    with units.begin(OPERATOR, ACTION, dry_run=True) as unit:
        unit.enqueue("ring", "node_1")
        num_before = len(unit.events)
        unit.emit("node.live", "node", "node_1")
        assert [event["kind"] for event in unit.events[num_before:]] == ["node.live"]
