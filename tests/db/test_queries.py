"""Queries with a promise of their own: fences, idempotency keys, uses of keys, the session's settings."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event as Signal
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session

from muster.db.engine import SessionLimits, driver_url, make_engine
from muster.db.errors import ContentionError, LockTimeoutError, translation_of
from muster.db.models import ApiKey
from muster.db.pipeline.batched import query_together
from muster.db.queries.cluster import NEXT_FENCE, node_filter_of, raise_epoch
from muster.db.queries.idempotency import claim_key, forget_before, store_answer
from muster.db.queries.keys import BY_PREFIX, note_use
from muster.domain.errors import RequestInFlightError, UnavailableError
from muster.domain.ids import Fence, KeyId
from muster.domain.principals import Role

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
REQUEST: dict[str, Any] = {
    "scope": "key_1",
    "key": "k",
    "method_path": "POST /v1/jobs",
    "body_sha256": b"x" * 32,
    "now": NOW,
}


def next_fence(session: Session) -> Fence:
    return node_filter_of(*query_together(session, NEXT_FENCE))


def test_fences_only_grow_also_across_a_restore(session: Session) -> None:
    first, second = next_fence(session), next_fence(session)
    raise_epoch(session)
    third = next_fence(session)
    assert first < second < third
    assert (first >> 32, third >> 32) == (1, 2)


def test_concurrent_fences_are_all_different(engine: Engine) -> None:
    def take(_: int) -> int:
        with Session(engine) as session, session.begin():
            return next_fence(session)

    with ThreadPoolExecutor(4) as pool:
        fences = list(pool.map(take, range(40)))
    assert len(set(fences)) == 40


def test_a_key_is_claimed_once_and_then_answered(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        assert claim_key(session, **REQUEST) is None
        store_answer(session, scope="key_1", key="k", status=201, body={"id": "job_1"}, location="/v1/jobs/job_1")
    with Session(engine) as session, session.begin():
        earlier = claim_key(session, **REQUEST)
        assert earlier is not None
        assert (earlier.status, earlier.body, earlier.location) == (201, {"id": "job_1"}, "/v1/jobs/job_1")
        assert claim_key(session, **{**REQUEST, "scope": "key_2"}) is None, "another principal's key is another key"


def test_a_key_of_a_failed_request_is_free_again(engine: Engine) -> None:
    with Session(engine) as session:
        assert claim_key(session, **REQUEST) is None
        session.rollback()
        assert claim_key(session, **REQUEST) is None


def test_a_second_request_waits_for_the_first(engine: Engine) -> None:
    is_claimed, may_commit = Signal(), Signal()

    def first() -> None:
        with Session(engine) as session, session.begin():
            claim_key(session, **REQUEST)
            is_claimed.set()
            may_commit.wait(60)
            store_answer(session, scope="key_1", key="k", status=201, body={})

    hasty = make_engine(engine.url, limits=SessionLimits(lock_ms=100))
    with ThreadPoolExecutor(1) as pool:
        winner = pool.submit(first)
        assert is_claimed.wait(60)
        with Session(hasty) as session, pytest.raises(RequestInFlightError):
            claim_key(session, **REQUEST)
        may_commit.set()
        winner.result()
    with Session(hasty) as session:
        earlier = claim_key(session, **REQUEST)
        assert earlier is not None
        assert earlier.status == 201
    hasty.dispose()


def test_old_keys_are_forgotten(session: Session) -> None:
    claim_key(session, **REQUEST)
    forget_before(session, NOW)
    assert claim_key(session, **REQUEST) is not None
    forget_before(session, NOW + timedelta(seconds=1))
    assert claim_key(session, **REQUEST) is None


def test_a_use_is_recorded_at_most_once_a_minute_and_is_no_edit(session: Session) -> None:
    session.add(
        ApiKey(id=KeyId("key_1"), prefix="mst_abc", secret_sha256=b"", name="ci", role=Role.OPERATOR, created_at=NOW)
    )
    session.flush()
    for seconds, noted in ((0, 0), (30, 0), (61, 61)):
        note_use(session, KeyId("key_1"), NOW + timedelta(seconds=seconds))
        session.expire_all()
        ((key,), others) = query_together(
            session, (BY_PREFIX, {"prefix": "mst_abc"}), (BY_PREFIX, {"prefix": "mst_other"})
        )
        assert (key.last_used_at, others) == (NOW + timedelta(seconds=noted), [])
        assert session.get_one(ApiKey, KeyId("key_1")).version == 1


def test_every_session_has_its_limits(engine: Engine) -> None:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "TimeZone", "application_name")
    with engine.connect() as connection:
        values = [connection.execute(text("SELECT current_setting(:name)"), {"name": name}).scalar() for name in names]
    assert values == ["5s", "2s", "10s", "UTC", "muster"]


@pytest.mark.parametrize("url", ["postgresql://a@h/d", "postgres://a@h/d", "postgresql+psycopg://a@h/d"])
def test_usual_urls_are_taken(url: str) -> None:
    assert str(driver_url(url)) == "postgresql+psycopg://a@h/d"


def test_another_database_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with postgresql://"):
        driver_url("mysql://a@h/d")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (psycopg.errors.DiskFull(), UnavailableError),
        (psycopg.errors.TooManyConnections(), UnavailableError),
        (psycopg.errors.AdminShutdown(), UnavailableError),
        (psycopg.errors.CannotConnectNow(), UnavailableError),
        (psycopg.errors.IoError(), UnavailableError),
        (psycopg.OperationalError("connection refused"), UnavailableError),
        (psycopg.errors.LockNotAvailable(), LockTimeoutError),
        (psycopg.errors.SerializationFailure(), ContentionError),
        (psycopg.errors.DeadlockDetected(), ContentionError),
        (psycopg.errors.UniqueViolation(), type(None)),
        (psycopg.errors.UndefinedTable(), type(None)),
    ],
)
def test_what_the_database_states_is_translated(error: psycopg.Error, expected: type) -> None:
    kind = OperationalError if isinstance(error, psycopg.OperationalError) else DBAPIError
    assert type(translation_of(kind("SELECT 1", {}, error))) is expected


def test_a_placement_whose_job_moved_on_met_another_change(engine: Engine) -> None:
    """The statement that stores a placement names a job of a version that is no more: nothing of it is kept."""
    missing = "INSERT INTO attempt_hosts (attempt_id, node_id, node_rank, state, rung_at, ring_count, is_past_lease) "
    with engine.begin() as connection, pytest.raises(IntegrityError) as refused:
        connection.execute(text(missing + "VALUES ('att_none', 'node_none', 0, 'UNCLAIMED', now(), 1, false)"))
    assert isinstance(translation_of(refused.value), ContentionError)
