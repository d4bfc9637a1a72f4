"""Once a minute the GPUs of a gang are compared: a long deviation gives evidence, unless the policy says no."""

from typing import Any

import pytest

from control.health.peers import PeerRounds
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import EvidenceRow
from muster.domain.policy.document import Policy
from muster.domain.states import Standing
from tests.control.health.conftest import GPU, JUDGE, UNLIMITED, Court, sample
from tests.fleet_factory import OPERATOR
from tests.played_host import PlayedHost

AT_WORK: dict[str, Any] = {"power_w": 680.0, "sm_clock_mhz": 1900.0, "temperature_c": 62.0, "utilisation_percent": 98.0}


@pytest.fixture
def working(court: Court) -> Court:
    """Eight GPUs that one job holds, and runs on."""
    host = PlayedHost(court.units, court.node_id)
    host.beat()
    job = court.fleet.submit(shape={"nodes": 1, "gpus_per_node": 8})
    court.fleet.cycle()
    (attempt,) = court.fleet.attempts(job)
    host.claim(attempt.attempt.id, attempt.attempt.fence)
    host.report(attempt.attempt.id, attempt.attempt.fence, "started")
    return court


def minutes(court: Court, rounds: PeerRounds, count: int, **apart: Any) -> int:
    """Run so many rounds, in which the first GPU reads what ``apart`` says. Return how many findings they made."""
    told = 0
    for _ in range(count):
        court.clock.advance(50)
        one = sample(GPU, **{**AT_WORK, **apart})
        court.receive(one, *(sample(f"GPU-many-{number}", **AT_WORK) for number in range(1, 8)))
        told += rounds.once()
    return told


def with_peers(court: Court, peers: dict[str, Any]) -> None:
    with court.units.begin(OPERATOR, ACTIVATE) as unit:
        policy = Policy.model_validate({"health": {"breaker": UNLIMITED, "peers": peers}})
        store_policy(unit, policy, reason="test")


def test_a_slow_gpu_of_a_gang_gets_one_piece_of_evidence(working: Court) -> None:
    rounds = PeerRounds(working.units, JUDGE)
    assert minutes(working, rounds, 7, sm_clock_mhz=1200.0) == 0
    assert minutes(working, rounds, 1, sm_clock_mhz=1200.0) == 1
    assert working.evidence() == [("peers:sm_clock_mhz", GPU)]
    (row,) = working.rows(EvidenceRow)
    assert "SM clock 1200 MHz against a median of 1900 MHz of 8 GPUs" in row.summary
    assert working.standing() is Standing.HEALTHY, "a warning takes no GPU out"
    assert minutes(working, rounds, 12, sm_clock_mhz=1200.0) >= 1, "it is stated again while it stands"
    assert len(working.rows(EvidenceRow)) == 1, "and stays one"
    assert working.rows(EvidenceRow)[0].last_seen_at > row.last_seen_at


def test_two_processes_find_one_fault(working: Court) -> None:
    one, other = PeerRounds(working.units, JUDGE), PeerRounds(working.units, JUDGE)
    for _ in range(9):
        minutes(working, one, 1, power_w=300.0)
        other.once()
    assert working.evidence() == [("peers:power_w", GPU)]


def test_gpus_that_are_alike_or_notified_of_long_ago_state_nothing(working: Court) -> None:
    rounds = PeerRounds(working.units, JUDGE)
    assert minutes(working, rounds, 10) == 0
    minutes(working, rounds, 7, power_w=300.0)
    working.clock.advance(600)
    assert [rounds.once() for _ in range(10)] == [0] * 10
    assert working.evidence() == []


def test_gpus_that_run_nothing_are_not_compared(court: Court) -> None:
    assert minutes(court, PeerRounds(court.units, JUDGE), 10, power_w=300.0) == 0


@pytest.mark.parametrize("peers", [{"is_on": False}, {"mode": "off"}])
def test_the_policy_turns_it_off(working: Court, peers: dict[str, Any]) -> None:
    with_peers(working, peers)
    assert minutes(working, PeerRounds(working.units, JUDGE), 10, power_w=300.0) == 0
    assert working.evidence() == []


def test_in_shadow_what_it_finds_is_kept_and_weighs_nothing(working: Court) -> None:
    with_peers(working, {"mode": "shadow"})
    assert minutes(working, PeerRounds(working.units, JUDGE), 8, power_w=300.0) == 1
    (row,) = working.rows(EvidenceRow)
    assert row.suppressed_by == ["shadow"]
