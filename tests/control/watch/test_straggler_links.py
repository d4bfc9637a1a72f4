"""Slow links and networks on the server: what probes between hosts add to reports of pace."""

from datetime import timedelta
from typing import Any

import pytest

from control.fleet import inventory
from control.watch.links import AGE, links_of
from control.watch.types import VerdictRecord
from muster.db.models import Node
from tests.control.watch.slow_job import SlowJob
from tests.fleet_factory import OPERATOR
from tests.stored_signals import add_signal


def test_a_network_that_stays_slow_has_one_verdict_whatever_one_rank_does_now_and_then(slow: SlowJob) -> None:
    found: list[VerdictRecord] = []
    for number in range(24):
        is_slow_rank = number == 18
        wait_s = 0.01 if number < 12 else 0.2
        slow.own_s[3] = 0.26 if is_slow_rank else 0.2
        slow.more = {rank: {"wait_s": wait_s, "tokens_per_step": 1000.0} for rank in range(4)}
        if is_slow_rank:
            slow.more[3]["wait_s"] -= 0.06
        found = slow.train(1)
    assert [(each.cause, each.ended_at) for each in found] == [("network", None)]
    assert slow.events("attempt.verdict_ended") == []


def probed(slow: SlowJob, one: int, other: int, *, ago: timedelta = timedelta(0), **values: Any) -> None:
    """The agent of one host reported a probe of another so long ago."""
    hosts = [slow.by_rank[node_rank].node_id for node_rank in (one, other)]
    at = slow.clock.now - ago
    with slow.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        columns: dict[str, Any] = {"node_id": hosts[0], "text": hosts[1], "received_at": at, "values": values}
        add_signal(unit, None, kind="pair_probe", code=None, source="agent", at=at, **columns)


def with_long_waits(slow: SlowJob, num_windows: int, **more: float) -> list[VerdictRecord]:
    slow.more = {rank: {"wait_s": 0.2, **more} for rank in range(4)}
    return slow.train(num_windows)


def test_a_link_that_probes_find_slow_names_the_network_with_its_hosts_and_share(slow: SlowJob) -> None:
    """The program reports no work: without a slow link its longer waits accuse no network."""
    slow.train(12)
    assert with_long_waits(slow, 3) == []
    probed(slow, 0, 1, ago=AGE + timedelta(seconds=60), sent=300.0, lost=90.0)
    probed(slow, 1, 0, ago=timedelta(seconds=60), sent=300.0, lost=1.0, round_trip_p99_us=900.0)
    assert with_long_waits(slow, 1) == [], "one result is too old, and the other shows a link that is well"
    probed(slow, 1, 0, sent=300.0, lost=36.0, round_trip_p99_us=900.0)
    (verdict,) = with_long_waits(slow, 1)
    assert (verdict.cause, verdict.ranks) == ("network", [2, 0])
    with slow.units.read() as session:
        names = [session.get_one(Node, slow.by_rank[node_rank].node_id).name for node_rank in (1, 0)]
    assert verdict.evidence == [f"12.0% of 300 messages between host {names[0]} and host {names[1]} were lost"]
    assert verdict.evidence[0] in verdict.sentence
    assert verdict.node_id is None, "either end of one link may be the cause"


def test_a_network_is_named_again_where_probes_name_its_link_at_last(slow: SlowJob) -> None:
    slow.more = {rank: {"tokens_per_step": 1000.0} for rank in range(4)}
    slow.train(12)
    (first,) = with_long_waits(slow, 5, tokens_per_step=1000.0)
    assert (first.cause, first.ranks) == ("network", [])
    probed(slow, 0, 1, sent=300.0, lost=0.0, round_trip_p99_us=9000.0)
    newest, ended = with_long_waits(slow, 1, tokens_per_step=1000.0)
    assert (newest.ranks, newest.ended_at, ended.id, ended.ended_at is None) == ([0, 2], None, first.id, False)
    assert "take 9.0 ms there and back (p99)" in newest.sentence
    assert [each.id for each in with_long_waits(slow, 1, tokens_per_step=1000.0)] == [newest.id, first.id]


@pytest.mark.parametrize(
    "values", [{"sent": "300", "lost": 299.0}, {"sent": 0.0, "lost": 0.0}, {"sent": 9.0, "lost": 10.0}, {}]
)
def test_a_probe_that_is_no_measurement_is_no_link(slow: SlowJob, values: dict[str, Any]) -> None:
    probed(slow, 0, 1, **values)
    with slow.units.read() as session:
        assert links_of(session, slow.attempt.id, slow.clock.now) == ()
