"""An operator goes back to the release before: its server refuses what it does not know; hosts keep their leases."""

from datetime import datetime

import msgspec
import pytest
from msgspec import Struct, field, structs

from muster.client.transport import Problem
from muster.db.models import Node
from muster.domain.states import AttemptState
from muster.wire.host import (
    HOST_CAPABILITIES,
    LAID_SECRETS,
    HeartbeatAnswer,
    HeartbeatRequest,
    HostAttempt,
    StopOrder,
    UnclaimedAttempt,
)
from tests.host_case import HostCase
from workers.host.meetings import Meetings


class OldRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """As the release before had it."""

    protocol: int
    boot_id: str
    seq: int
    attempts: tuple[HostAttempt, ...] = field(name="held", default=())
    is_woken: bool = field(name="rung", default=False)


class OldAnswer(Struct, kw_only=True):
    """As the release before had it."""

    lease_s: float
    heartbeat_s: float
    unclaimed: tuple[UnclaimedAttempt, ...] = ()
    stops: tuple[StopOrder, ...] = ()
    forget: tuple[str, ...] = ()
    go: tuple[str, ...] = ()


class OldServer:
    """In front of today's services: reads and answers what the release before did."""

    def __init__(self, host: HostCase) -> None:
        self._heartbeat = host.client.heartbeat
        self.num_taken = 0
        self.num_refused = 0

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        try:
            old = msgspec.json.decode(msgspec.json.encode(request), type=OldRequest)
        except msgspec.ValidationError as error:
            self.num_refused += 1
            raise Problem(422, "validation_failed", str(error)) from error
        self.num_taken += 1
        answer = self._heartbeat(HeartbeatRequest(**msgspec.structs.asdict(old)))
        known = msgspec.json.decode(msgspec.json.encode(answer), type=OldAnswer)
        return msgspec.json.decode(msgspec.json.encode(known), type=HeartbeatAnswer)


KNOWN = [name for name in HOST_CAPABILITIES if name not in {"bundle", "environment", "git", "outputs"}]
"""This host has no place for stored content, which its worker's settings name."""


def _node(host: HostCase) -> Node:
    with host.fleet.units.read() as session:
        return session.get_one(Node, host.fleet.node_id)


def _lease(host: HostCase) -> datetime:
    renewed_at = _node(host).lease_renewed_at
    assert renewed_at is not None
    return renewed_at


def test_a_host_reports_what_it_knows_in_its_first_turn_where_the_server_takes_it(host: HostCase) -> None:
    assert _node(host).capabilities == [*KNOWN, LAID_SECRETS]


def test_its_lease_is_renewed_by_the_server_that_came_back_and_what_runs_runs_on(
    host: HostCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = host.submit("import time; time.sleep(600)")
    host.run_until_started(job_id)
    old = OldServer(host)
    with monkeypatch.context() as went_back:
        went_back.setattr(host.client, "heartbeat", old.heartbeat)
        before = _lease(host)
        host.launcher.turn(woken=True)
        assert (old.num_refused, old.num_taken) == (1, 1), "it got less, at once"
        assert _lease(host) > before
        host.launcher.turn(woken=True)
        host.restart().turn(woken=True)
        assert (old.num_refused, old.num_taken) == (1, 3), "and nothing more until it takes it"
    assert host.fleet.attempts(job_id)[0].attempt.state is AttemptState.RUNNING
    host.launcher.turn(woken=True)
    assert _node(host).capabilities == [*KNOWN, LAID_SECRETS]
    host.fleet.cancel(job_id)
    host.run(job_id)


def test_a_server_that_takes_it_and_yet_refuses_is_queried_twice_and_no_more(
    host: HostCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of two behind one address, the other of which has gone back."""
    heartbeat, refused = host.client.heartbeat, []

    def refuse_more(request: HeartbeatRequest) -> HeartbeatAnswer:
        if request.capabilities:
            refused.append(request)
            raise Problem(422, "validation_failed", "unknown field knows")
        return heartbeat(request)

    monkeypatch.setattr(host.client, "heartbeat", refuse_more)
    before = _lease(host)
    host.launcher.turn(woken=True)
    assert len(refused) == 1
    assert _lease(host) > before


def test_a_server_that_knows_of_no_meetings_and_a_stale_beats_answer_call_none_off(
    host: HostCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[object] = []
    monkeypatch.setattr(Meetings, "receive", lambda _self, *orders: received.append(orders))
    host.launcher.turn(woken=True)
    assert len(received) == 1, "today's server reports meetings"
    heartbeat = host.client.heartbeat
    monkeypatch.setattr(host.client, "heartbeat", lambda request: structs.replace(heartbeat(request), lease_s=0.0))
    host.launcher.turn(woken=True)
    monkeypatch.setattr(host.client, "heartbeat", OldServer(host).heartbeat)
    host.launcher.turn(woken=True)
    assert len(received) == 1
