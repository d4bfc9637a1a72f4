"""Statements that travel in one go: each sees what the one before it did, and a fault of one is a fault of all."""

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.orm import Session

from muster.db.errors import translation_of, violated_constraint
from muster.db.pipeline.batched import query_together
from muster.db.pipeline.pg_pipeline import Query
from muster.domain.errors import UnavailableError

ADD: Query = ("INSERT INTO cluster (id, epoch, fence_serial) VALUES (%(id)s, 1, 0) RETURNING id", {"id": 7})
COUNT: Query = ("SELECT count(*) AS num FROM outbox", {})
REPORT: Query = (
    "INSERT INTO outbox VALUES (DEFAULT, %(topic)s, 'k', '{}', now(), now(), 0) RETURNING topic",
    {"topic": "lending"},
)


def num_messages(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT count(*) FROM outbox")) or 0)


def test_each_sees_what_the_one_before_did_and_no_other_does_yet(session: Session, engine: Engine) -> None:
    before, told, after = query_together(session, COUNT, REPORT, COUNT)
    assert (before[0].num, told[0].topic, after[0].num) == (0, "lending", 1)
    assert num_messages(engine) == 0
    session.commit()
    assert num_messages(engine) == 1


def test_commit_goes_along(session: Session, engine: Engine) -> None:
    query_together(session, REPORT, commit=True)
    assert num_messages(engine) == 1, "before the session itself commits"
    session.commit()
    query_together(session, REPORT)
    session.rollback()
    assert num_messages(engine) == 1, "the session continues as before"


def test_they_join_a_transaction_that_has_begun(session: Session, engine: Engine) -> None:
    session.execute(text("INSERT INTO outbox VALUES (DEFAULT, 'a', 'k', '{}', now(), now(), 0)"))
    (counted,) = query_together(session, COUNT, commit=True)
    assert (counted[0].num, num_messages(engine)) == (1, 1)


def test_a_fault_of_one_undoes_all_and_nothing_is_committed(session: Session, engine: Engine) -> None:
    with pytest.raises(IntegrityError) as refused:
        query_together(session, REPORT, ADD, COUNT, commit=True)
    assert violated_constraint(refused.value) is not None
    session.rollback()
    assert num_messages(engine) == 0
    with pytest.raises(ProgrammingError):
        query_together(session, REPORT, ("SELECT nothing FROM nowhere", {}), commit=True)
    session.rollback()
    assert num_messages(engine) == 0
    assert query_together(session, REPORT, commit=True)[0][0].topic == "lending"


def test_a_connection_that_was_cut_is_unavailable_and_the_next_one_works(session: Session, engine: Engine) -> None:
    pid = session.scalar(text("SELECT pg_backend_pid()"))
    with engine.connect() as other:
        assert other.scalar(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})
    with pytest.raises(Exception) as cut:  # noqa: PT011  # which class the driver finds for it is not ours to say
        query_together(session, REPORT, commit=True)
    assert isinstance(translation_of(cut.value), UnavailableError)
    session.rollback()
    assert num_messages(engine) == 0
    assert query_together(session, REPORT, commit=True)[0][0].topic == "lending"


def test_another_driver_is_refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = session.connection().connection
    monkeypatch.setattr(type(connection), "driver_connection", property(lambda _self: object()))
    with pytest.raises(TypeError, match="psycopg 3"):
        query_together(session, COUNT)
