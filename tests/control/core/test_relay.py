"""The relay: at least once, never from inside a transaction, and with an end to trying."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, select, text

from control.core.relay import BACKOFF_CAP_S, CLAIM_LEASE, MAX_TRIES, backoff, has_due, relay_once
from control.core.unit_of_work import WAKEUP_TOPIC, UnitOfWorkFactory, declare_action
from muster.db.models import OutboxMessage
from muster.db.queries.outbox import num_dead
from muster.domain.principals import system_principal
from muster.failpoints import FailpointError, arming

ACTION = declare_action("test.enqueue")
SYSTEM = system_principal("test")


def enqueue(units: UnitOfWorkFactory, *keys: str, topic: str = "webhook") -> None:
    with units.begin(SYSTEM, ACTION) as unit:
        for key in keys:
            unit.enqueue(topic, key, {"key": key})


def messages(units: UnitOfWorkFactory) -> list[OutboxMessage]:
    with units.read() as session:
        return list(session.scalars(select(OutboxMessage).order_by(OutboxMessage.id)))


class Post:
    """A destination that remembers its messages, and fails as long as asked."""

    def __init__(self, *, num_failures: int = 0) -> None:
        self.arrived: list[str] = []
        self.num_failures = num_failures

    def __call__(self, topic: str, key: str, payload: dict[str, Any]) -> None:
        assert payload == {"key": key}
        if self.num_failures:
            self.num_failures -= 1
            raise ConnectionError(f"no route for {topic}")
        self.arrived.append(key)


def test_messages_go_out_in_order_and_once_when_nothing_fails(units: UnitOfWorkFactory) -> None:
    post = Post()
    enqueue(units, *"abcde")
    assert len(relay_once(units, post, batch=3).sent) == 3
    assert len(relay_once(units, post, batch=3).sent) == 2
    assert relay_once(units, post).is_idle
    assert post.arrived == list("abcde")


def test_nothing_goes_out_from_a_unit_that_rolled_back(units: UnitOfWorkFactory) -> None:
    with units.begin(SYSTEM, ACTION, dry_run=True) as unit:
        unit.enqueue("webhook", "a")
    assert relay_once(units, Post()).is_idle


def test_a_failed_message_is_sent_again_after_a_pause(units: UnitOfWorkFactory, clock: Any) -> None:
    post = Post(num_failures=2)
    enqueue(units, "a")
    for tries in (1, 2):
        assert list(relay_once(units, post).failed.values()) == ["ConnectionError: no route for webhook"]
        assert messages(units)[0].tries == tries
        clock.advance(BACKOFF_CAP_S)
    relay_once(units, post)
    assert post.arrived == ["a"]
    sent = messages(units)[0]
    assert (sent.tries, sent.sent_at, sent.last_error) == (3, clock.now, None)


def test_a_message_is_work_whenever_it_is_due(units: UnitOfWorkFactory, clock: Any) -> None:
    assert not has_due(units)
    enqueue(units, "a")
    assert has_due(units)
    relay_once(units, Post(num_failures=1))
    clock.advance(BACKOFF_CAP_S)
    assert has_due(units), "it failed, and its pause is over"
    relay_once(units, Post())
    assert not has_due(units)


def test_a_crash_between_sending_and_settling_sends_twice_and_loses_nothing(
    units: UnitOfWorkFactory, clock: Any
) -> None:
    post = Post()
    enqueue(units, "a")
    with pytest.raises(FailpointError), arming("relay.after_send=raise"):
        relay_once(units, post)
    assert relay_once(units, post).is_idle, "until the claim's lease is over it is not sent again"
    clock.advance(CLAIM_LEASE.total_seconds())
    relay_once(units, post)
    assert post.arrived == ["a", "a"]


def test_a_message_is_given_up_after_twenty_tries(units: UnitOfWorkFactory, clock: Any) -> None:
    post = Post(num_failures=1000)
    enqueue(units, "a")
    for _ in range(MAX_TRIES):
        relay_once(units, post)
        clock.advance(BACKOFF_CAP_S)
    assert relay_once(units, post).is_idle
    dead = messages(units)[0]
    assert (dead.tries, dead.sent_at) == (MAX_TRIES, None)
    with units.read() as session:
        assert num_dead(session) == 1


def test_a_message_that_kills_its_relay_is_given_up_too(units: UnitOfWorkFactory, clock: Any) -> None:
    enqueue(units, "a")
    for _ in range(MAX_TRIES):
        with pytest.raises(FailpointError), arming("relay.after_send=raise"):
            relay_once(units, Post())
        clock.advance(CLAIM_LEASE.total_seconds())
    assert relay_once(units, Post()).is_idle
    assert messages(units)[0].dead_at is not None


def test_a_stale_wakeup_is_dropped_and_a_fresh_one_sent(units: UnitOfWorkFactory, clock: Any) -> None:
    post = Post()
    enqueue(units, "old", topic=WAKEUP_TOPIC)
    clock.advance(61)
    enqueue(units, "fresh", topic=WAKEUP_TOPIC)
    outcome = relay_once(units, post)
    assert (len(outcome.dropped), len(outcome.sent), post.arrived) == (1, 1, ["fresh"])
    assert [message.sent_at is not None for message in messages(units)] == [True, True]


def test_many_relays_share_the_work_and_send_nothing_twice(units: UnitOfWorkFactory) -> None:
    post = Post()
    keys = [str(number) for number in range(200)]
    enqueue(units, *keys)

    def drain() -> None:
        while not relay_once(units, post, batch=10).is_idle:
            pass

    with ThreadPoolExecutor(4) as pool:
        for worker in [pool.submit(drain) for _ in range(4)]:
            worker.result()
    assert sorted(post.arrived) == sorted(keys)


def test_sending_holds_no_transaction(units: UnitOfWorkFactory, engine: Engine) -> None:
    enqueue(units, "a")
    in_transaction: list[int] = []

    def check(topic: str, key: str, payload: dict[str, Any]) -> None:
        del topic, key, payload
        with engine.connect() as connection:
            count = text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
            )
            in_transaction.append(connection.execute(count).scalar_one())

    relay_once(units, check)
    assert in_transaction == [0]


def test_pauses_grow_with_full_jitter_up_to_thirty_seconds() -> None:
    longest = [backoff(tries, rng=lambda _low, high: high).total_seconds() for tries in range(1, 21)]
    assert longest[:3] == [0.2, 0.4, 0.8]
    assert max(longest) == BACKOFF_CAP_S
    chance = random.Random(1)  # noqa: S311  # pauses that can be repeated
    pauses = [backoff(5, rng=chance.uniform).total_seconds() for _ in range(10)]
    assert all(0 <= pause <= 3.2 for pause in pauses)
