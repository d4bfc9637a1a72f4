"""The audit chain: whole after every seal, and broken by every attack that does not rewrite all of it."""

import random
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from control.core.sealer import GENESIS, Anchor, entry_hash, has_unsealed, seal_once, verify_audit
from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from muster.db.models import AuditEntry
from muster.domain.ids import TenantId
from muster.domain.principals import Principal, Role

ACTION = declare_action("test.audited")
OPERATOR = Principal(name="olga", role=Role.OPERATOR, address="10.0.0.1", request_id="req_1")
NUM_ENTRIES = 24
NUM_ATTACKS = 200


def write(units: UnitOfWorkFactory, first: int, last: int) -> None:
    for number in range(first, last + 1):
        with units.begin(OPERATOR, ACTION) as unit:
            detail = {"number": number, "price": number / 7, "é": [None, True, "ü"]}
            unit.audit("node.cordon", "node", f"node_{number}", tenant_id=TenantId("ten_1"), reason="r", detail=detail)


@pytest.fixture
def chain(units: UnitOfWorkFactory) -> UnitOfWorkFactory:
    """Sealed in several batches, with nothing left unsealed."""
    write(units, 1, NUM_ENTRIES)
    assert [seal_once(units, batch=10) for _ in range(4)] == [10, 10, 4, 0]
    return units


@pytest.fixture
def tamperer(engine: Engine) -> Iterator[Connection]:
    """The database's owner, past every trigger; nothing of it stays."""
    with engine.connect() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        yield connection
        connection.rollback()


def test_an_untouched_chain_holds(chain: UnitOfWorkFactory) -> None:
    with chain.read() as session:
        verification = verify_audit(session)
    assert verification.ok
    assert (verification.entries, verification.sealed_to, verification.unsealed_tail) == (NUM_ENTRIES, NUM_ENTRIES, 0)
    with chain.read() as session:
        assert verify_audit(session, witness=verification.anchor).ok


def test_an_empty_log_holds(units: UnitOfWorkFactory) -> None:
    with units.read() as session:
        verification = verify_audit(session)
    assert (verification.ok, verification.anchor) == (True, Anchor(0, GENESIS))


def test_the_unsealed_tail_is_counted(chain: UnitOfWorkFactory) -> None:
    write(chain, 100, 102)
    with chain.read() as session:
        verification = verify_audit(session)
    assert (verification.ok, verification.unsealed_tail) == (True, 3)


def test_an_entry_is_work_until_it_is_sealed(chain: UnitOfWorkFactory) -> None:
    assert not has_unsealed(chain)
    write(chain, NUM_ENTRIES + 1, NUM_ENTRIES + 1)
    assert has_unsealed(chain)
    seal_once(chain)
    assert not has_unsealed(chain)


def test_two_sealers_and_late_writers_make_one_chain(units: UnitOfWorkFactory) -> None:
    is_over = threading.Event()

    def seal() -> None:
        while not is_over.is_set():
            seal_once(units, batch=3)

    with ThreadPoolExecutor(5) as pool:
        sealers = [pool.submit(seal) for _ in range(2)]
        for writer in [pool.submit(write, units, 10 * n, 10 * n + 9) for n in range(3)]:
            writer.result()
        is_over.set()
        for sealer in sealers:
            sealer.result()
    while seal_once(units):
        pass
    with units.read() as session:
        verification = verify_audit(session)
    assert (verification.ok, verification.entries) == (True, 30)


def edit(connection: Connection, rng: random.Random) -> None:
    change = rng.choice(
        [
            "actor = actor || 'x'",
            "at = at + interval '1 microsecond'",
            "detail = detail || '{\"number\": -1}'",
            "detail = detail - 'number'",
            "reason = NULL",
            "tenant_id = NULL",
            "address = '10.0.0.2'",
            "role = 'auditor'",
            "subject_id = 'node_0'",
            "action = 'node.uncordon'",
            "serial = DEFAULT",
            "actor_key_id = 'key_9'",
            "request_id = 'req_2'",
        ]
    )
    on_entry(connection, rng, f"UPDATE audit_entries SET {change} WHERE position = :position")  # noqa: S608  # from the list above


def edit_and_rehash(connection: Connection, rng: random.Random) -> None:
    position = rng.randint(1, NUM_ENTRIES)
    with Session(connection, join_transaction_mode="create_savepoint") as session:
        entry = session.query(AuditEntry).filter_by(position=position).one()
        entry.actor = "nobody"
        entry.hash = entry_hash(entry, entry.prev_hash or b"")
        session.commit()


def delete_one(connection: Connection, rng: random.Random) -> None:
    on_entry(connection, rng, "DELETE FROM audit_entries WHERE position = :position")


def delete_and_close_the_gap(connection: Connection, rng: random.Random) -> None:
    position = rng.randint(1, NUM_ENTRIES - 1)
    connection.execute(text("DELETE FROM audit_entries WHERE position = :position"), {"position": position})
    for later in range(position + 1, NUM_ENTRIES + 1):
        connection.execute(
            text("UPDATE audit_entries SET position = position - 1 WHERE position = :later"), {"later": later}
        )


def cut_the_end(connection: Connection, rng: random.Random) -> None:
    on_entry(connection, rng, "DELETE FROM audit_entries WHERE position >= :position")


def swap(connection: Connection, rng: random.Random) -> None:
    one, other = rng.sample(range(1, NUM_ENTRIES + 1), 2)
    for origin, target in ((one, -1), (other, one), (-1, other)):
        connection.execute(
            text("UPDATE audit_entries SET position = :target WHERE position = :origin"),
            {"origin": origin, "target": target},
        )


def unseal(connection: Connection, rng: random.Random) -> None:
    statement = "UPDATE audit_entries SET position = NULL, hash = NULL, prev_hash = NULL WHERE position = :position"
    on_entry(connection, rng, statement)


def forge(connection: Connection, rng: random.Random) -> None:
    connection.execute(
        text(
            """
            INSERT INTO audit_entries (id, position, at, actor, role, action, subject_type, subject_id, detail,
                prev_hash, hash)
            SELECT 'aud_forged', position + 1, at, 'nobody', role, action, subject_type, subject_id, detail, hash, hash
            FROM audit_entries WHERE position = :position
            """
        ),
        {"position": NUM_ENTRIES},
    )
    del rng


def move_the_anchor(connection: Connection, rng: random.Random) -> None:
    on_entry(connection, rng, "UPDATE sequence_heads SET position = position - :position WHERE name = 'audit'")


def on_entry(connection: Connection, rng: random.Random, statement: str) -> None:
    touched = connection.execute(text(statement), {"position": rng.randint(1, NUM_ENTRIES)})
    assert touched.rowcount >= 1


ATTACKS: list[Callable[[Connection, random.Random], None]] = [
    edit,
    edit_and_rehash,
    delete_one,
    delete_and_close_the_gap,
    cut_the_end,
    swap,
    unseal,
    forge,
    move_the_anchor,
]


def test_every_attack_is_detected(chain: UnitOfWorkFactory, tamperer: Connection) -> None:
    del chain
    missed = []
    for seed in range(NUM_ATTACKS):
        chance = random.Random(seed)  # noqa: S311  # attacks that can be repeated
        attack = ATTACKS[seed % len(ATTACKS)]
        with tamperer.begin_nested() as point:
            attack(tamperer, chance)
            with Session(tamperer) as session:
                verification = verify_audit(session)
            if verification.ok or verification.first_fault is None:
                missed.append((seed, attack.__name__))
            point.rollback()
    assert missed == []


def test_the_first_fault_is_named(chain: UnitOfWorkFactory, tamperer: Connection) -> None:
    del chain
    tamperer.execute(text("UPDATE audit_entries SET actor = 'x' WHERE position IN (7, 9)"))
    with Session(tamperer) as session:
        fault = verify_audit(session).first_fault
    assert fault is not None
    assert (fault.position, fault.what) == (7, "its content is not what was sealed")


def test_a_witness_sees_what_a_forger_of_the_whole_chain_did(chain: UnitOfWorkFactory, tamperer: Connection) -> None:
    with chain.read() as session:
        witness = verify_audit(session).anchor
    tamperer.execute(text("DELETE FROM audit_entries WHERE position > 10"))
    tamperer.execute(
        text(
            "UPDATE sequence_heads SET position = 10, hash = (SELECT hash FROM audit_entries WHERE position = 10)"
            " WHERE name = 'audit'"
        )
    )
    with Session(tamperer) as session:
        assert verify_audit(session).ok
        fault = verify_audit(session, witness=witness).first_fault
    assert fault is not None
    assert re.search(r"witness saw position 24", fault.what)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_entries SET actor = 'x'",
        "UPDATE audit_entries SET position = NULL, hash = NULL, prev_hash = NULL",
        "DELETE FROM audit_entries",
        "TRUNCATE audit_entries",
    ],
)
def test_the_database_refuses_to_change_an_entry(chain: UnitOfWorkFactory, engine: Engine, statement: str) -> None:
    del chain
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(text(statement))
