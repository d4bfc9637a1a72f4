"""Routes that anyone may ask, limited by address: a guesser waits, and no other address waits with it."""

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from api.address_limit import AddressLimit
from api.app import create_app
from api.dependencies import AppDependencies
from control.core.unit_of_work import UnitOfWorkFactory
from muster.domain.errors import RateLimitedError
from muster.domain.policy.limits import LimitPolicy
from tests.hand_clock import HandClock

GUESS = {"protocol": 1, "token": "guessed", "host_name": "gpu-9", "public_key": "A" * 43 + "="}


def _refused_for_s(limit: AddressLimit, address: str) -> int | None:
    with pytest.raises(RateLimitedError) as refused:
        limit.take(address)
    return refused.value.retry_after_s


def test_an_address_has_its_burst_and_then_its_rate() -> None:
    clock = HandClock(1000.0)
    limit = AddressLimit(3, 0.5, clock_s=clock)
    for _ in range(3):
        limit.take("10.0.0.1")
    assert _refused_for_s(limit, "10.0.0.1") == 2
    limit.take("10.0.0.2")
    clock.now_s += 2
    limit.take("10.0.0.1")
    assert _refused_for_s(limit, "10.0.0.1") == 2
    clock.now_s += 3600
    for _ in range(3):
        limit.take("10.0.0.1")
    assert _refused_for_s(limit, "10.0.0.1") == 2


def test_requesting_while_refused_costs_nothing_more() -> None:
    clock = HandClock(1000.0)
    limit = AddressLimit(1, 1.0, clock_s=clock)
    limit.take("10.0.0.1")
    for _ in range(50):
        _refused_for_s(limit, "10.0.0.1")
    clock.now_s += 1
    limit.take("10.0.0.1")


def test_one_host_of_ipv6_is_one_address_however_many_it_takes() -> None:
    limit = AddressLimit(1, 1.0, clock_s=HandClock(1000.0))
    limit.take("2001:db8:0:1::1")
    _refused_for_s(limit, "2001:db8:0:1:ffff::2")
    limit.take("2001:db8:0:2::1")
    limit.take("::ffff:10.0.0.1")
    _refused_for_s(limit, "10.0.0.1")


def test_the_memory_of_addresses_is_bounded() -> None:
    limit = AddressLimit(1, 1.0, clock_s=HandClock(1000.0), max_addresses=100)
    for number in range(1000):
        limit.take(f"10.0.{number // 250}.{number % 250}")
    _refused_for_s(limit, "10.0.3.249")
    limit.take("10.0.0.0")


def test_guesses_at_join_tokens_are_answered_429_with_when_to_come_again(engine: Engine) -> None:
    limits = LimitPolicy(joining_burst=5, joining_per_s=0.01)
    app = create_app(AppDependencies(units=UnitOfWorkFactory(engine), secret_key=b"x" * 32, limits=limits))
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        answers = [client.post("/v1/enrol", json=GUESS) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [401] * 5
        refused = client.post("/v1/enrol", json=GUESS)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 100
        assert client.post("/v1/nodes/node_00000000000000000000000000/token", json={}).status_code == 429
        assert client.get("/healthz").status_code == 200
