"""Probes between hosts over the real API: the peers that a node gets, the secrets of its answers, the figures of racks.

Two agents' workers probe each other on real sockets in ``test_two_hosts_…``.
"""

import random
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import delete, select, update

from agents.observer import Clocks
from agents.pair_probes.worker import HttpPairProbeServer, PairProbeWorker
from agents.probes.interface import ProbeEvent
from agents.reports import event_report
from control.core.unit_of_work import utc_now
from control.fleet import inventory
from control.tenants import keys
from health.pairwise.pair_probes import ROUND_S
from muster.db.models import Event, Node, NodeLatest, PairProbeResponder
from muster.domain.ids import NodeId
from muster.domain.principals import Role
from tests.api.conftest import Api
from tests.fleet_factory import OPERATOR, enrol_host
from tests.stored_signals import add_signal
from tests.telemetry_reports import report

URL = "/v1/hosts/self/pair-probes/ask"
SESSION = "0123456789abcdef"


def receive(
    api: Api, *nodes: NodeId, ago_s: float = 0.0, rack: str | None = None, boot_id: str | None = "boot-1"
) -> None:
    """Their agents reported so long ago."""
    with api.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        unit.session.execute(delete(NodeLatest).where(NodeLatest.node_id.in_(nodes)))
        for node in nodes:
            unit.session.add(NodeLatest(node_id=node, boot_id=boot_id, received_at=unit.now - timedelta(seconds=ago_s)))
            if rack is not None:
                unit.session.execute(update(Node).where(Node.id == node).values(rack=rack))


def key_for(api: Api, node: NodeId, name: str) -> str:
    with api.units.begin(OPERATOR, keys.CREATE) as unit:
        return keys.create(unit, name=name, role=Role.NODE, tenant_id=None, node_id=node).token.text


def ask(api: Api, token: str, *, port: int | None = 9420, session: str = SESSION, **more: Any) -> dict[str, Any]:
    body = {"protocol": 1, "boot_id": "boot-1", "session": session, "port": port, **more}
    answer = api.client.post(URL, json=body, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def api_clock() -> Callable[[], datetime]:
    """A round has just begun, whenever the tests run: none ends in the middle of a test."""
    began = utc_now()
    into_round = timedelta(seconds=began.timestamp() % ROUND_S)
    return lambda: utc_now() - into_round


@pytest.fixture
def beta(api: Api) -> NodeId:
    node = enrol_host(api.units, "beta")
    receive(api, api.fleet.node_id, rack="r1")
    receive(api, node, rack="r2")
    return node


def test_hosts_that_answer_are_named_to_each_other_with_the_keys_that_they_take(api: Api, beta: NodeId) -> None:
    alphas, betas = api.tokens["node"], key_for(api, beta, "beta")
    assert ask(api, alphas)["peers"] == [], "no other host answers yet"
    taken = ask(api, betas, port=9421, session="b" * 16)
    (alpha,) = taken["peers"]
    (found,) = ask(api, alphas)["peers"]
    assert found["node_id"] == beta
    assert (found["address"], found["port"], found["session"]) == ("127.0.0.1", 9421, "b" * 16)
    assert found["key"] in taken["keys"]
    assert alpha["node_id"] == api.fleet.node_id
    assert alpha["key"] in ask(api, alphas)["keys"]
    assert alpha["key"] not in taken["keys"], "a key opens one host alone"
    assert len(set(taken["keys"])) == 5
    assert 0 < taken["ask_again_s"] <= ROUND_S
    with api.units.read() as session:
        assert not session.scalars(select(Event.kind).where(Event.kind.like("pair_probe%"))).all()


def test_what_does_not_answer_is_named_no_peers_and_to_none(api: Api, beta: NodeId) -> None:
    ask(api, api.tokens["node"])
    assert ask(api, key_for(api, beta, "beta"), port=None)["peers"] == []
    assert ask(api, api.tokens["node"])["peers"] == []


@pytest.mark.parametrize("gone", ["silent", "stopped asking"])
def test_what_is_away_is_named_to_none(api: Api, beta: NodeId, gone: str) -> None:
    ask(api, key_for(api, beta, "beta"))
    if gone == "silent":
        receive(api, beta, ago_s=120)
    else:
        with api.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
            long_ago = unit.now - timedelta(seconds=3 * ROUND_S)
            unit.session.execute(update(PairProbeResponder).values(reported_at=long_ago))
    assert ask(api, api.tokens["node"])["peers"] == []


def test_simulated_hosts_and_real_ones_do_not_probe_each_other(api: Api, beta: NodeId) -> None:
    with api.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        unit.session.execute(update(Node).where(Node.id == beta).values(is_simulated=False))
    ask(api, key_for(api, beta, "beta"))
    assert ask(api, api.tokens["node"])["peers"] == []


def test_what_was_lost_at_an_agent_that_was_away_or_began_again_is_withheld(api: Api, beta: NodeId) -> None:
    betas, alphas = key_for(api, beta, "beta"), api.tokens["node"]
    ask(api, betas, session="b" * 16)
    probed = [{"node_id": beta, "session": "b" * 16}, {"node_id": "node_unknown", "session": "c" * 16}]
    assert ask(api, alphas, probed=probed)["withheld"] == ["node_unknown"]
    receive(api, beta, ago_s=120)
    assert ask(api, alphas, probed=probed[:1])["withheld"] == [beta]
    receive(api, beta)
    ask(api, betas, session="d" * 16)
    assert ask(api, alphas, probed=probed[:1])["withheld"] == [beta]


def test_what_was_lost_at_a_host_that_rebooted_is_withheld_though_none_there_has_requested_yet(
    api: Api, beta: NodeId
) -> None:
    ask(api, key_for(api, beta, "beta"))
    probed = [{"node_id": beta, "session": SESSION}]
    assert ask(api, api.tokens["node"], probed=probed)["withheld"] == []
    receive(api, beta, boot_id="boot-2")
    told = ask(api, api.tokens["node"], probed=probed)
    assert (told["withheld"], told["peers"]) == ([beta], [])


def test_a_host_that_went_away_in_the_newest_burst_is_no_loss_of_the_networks(api: Api, beta: NodeId) -> None:
    ask(api, key_for(api, beta, "beta"))
    probed = [{"node_id": beta, "session": SESSION}]
    for ago_s, withheld in ((40, []), (50, [beta])):
        receive(api, beta, ago_s=ago_s)
        assert ask(api, api.tokens["node"], probed=probed)["withheld"] == withheld


def test_an_agent_that_begins_again_answers_none_until_it_reports_it(api: Api, beta: NodeId) -> None:
    betas, probed = key_for(api, beta, "beta"), [{"node_id": beta, "session": SESSION}]
    ask(api, betas)
    ask(api, betas, port=None)
    assert ask(api, api.tokens["node"], probed=probed)["withheld"] == [], "the same life asks what its address is"
    ask(api, betas, port=None, session="n" * 16)
    told = ask(api, api.tokens["node"], probed=probed)
    assert (told["withheld"], told["peers"]) == ([beta], [])


def test_what_was_lost_at_an_agent_that_reports_and_requests_no_more_is_withheld(api: Api, beta: NodeId) -> None:
    ask(api, key_for(api, beta, "beta"))
    probed = [{"node_id": beta, "session": SESSION}]
    for ago_s, withheld in ((ROUND_S + 60, []), (ROUND_S + 600, [beta])):
        with api.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
            asked_at = unit.now - timedelta(seconds=ago_s)
            unit.session.execute(
                update(PairProbeResponder).where(PairProbeResponder.node_id == beta).values(reported_at=asked_at)
            )
        assert ask(api, api.tokens["node"], probed=probed)["withheld"] == withheld


@pytest.mark.parametrize(
    "change",
    [
        {"port": 0},
        {"port": 65_536},
        {"session": "short"},
        {"probed": [{"node_id": "n"}]},
        {"unknown": 1},
        {"port": "9"},
    ],
)
def test_a_bad_question_is_refused_by_name(api: Api, change: dict[str, Any]) -> None:
    body = {"protocol": 1, "boot_id": "boot-1", "session": SESSION, "port": 9420, **change}
    answer = api.client.post(URL, json=body, headers=api.headers("node"))
    assert answer.status_code == 422
    (name,) = change
    assert name in answer.text


def test_another_protocol_is_ordered_to_upgrade(api: Api) -> None:
    body = {"protocol": 2, "boot_id": "boot-1", "session": SESSION}
    assert api.client.post(URL, json=body, headers=api.headers("node")).status_code == 426


def reported(api: Api, node: NodeId, peer: str, *, ago_h: float = 0.1, **values: float) -> None:
    with api.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        add_signal(
            unit,
            None,
            kind="pair_probe",
            code=None,
            source="agent",
            at=unit.now - timedelta(hours=ago_h),
            signal_id=f"{node}-{peer}-{ago_h}-{values}",
            node_id=node,
            text=peer,
            values=values,
        )


def rack_pairs(api: Api, **query: object) -> list[dict[str, Any]]:
    answer = api.client.get("/v1/rack-pairs", params=query, headers=api.headers("auditor"))
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def test_racks_are_reported_in_pairs_the_greatest_loss_first(api: Api, beta: NodeId) -> None:
    alpha, gamma = api.fleet.node_id, enrol_host(api.units, "gamma")
    reported(api, alpha, beta, sent=100, lost=10, round_trip_p50_us=100, round_trip_p99_us=900)
    reported(api, beta, alpha, sent=300, lost=10, round_trip_p50_us=300, round_trip_p99_us=700)
    reported(api, gamma, alpha, sent=100, lost=100)
    reported(api, alpha, beta, ago_h=2, sent=100, lost=100)
    reported(api, alpha, "node_gone", sent=100, lost=100)
    reported(api, alpha, beta, ago_h=0.2, sent=0, lost=0)
    unknown, known = rack_pairs(api)
    assert known == {
        "rack": "r1",
        "other_rack": "r2",
        "num_pairs": 1,
        "num_sent": 400,
        "num_lost": 20,
        "lost_share": 0.05,
        "round_trip_p50_us": 200.0,
        "round_trip_p99_us": 900.0,
        "worst_node": "alpha",
        "worst_peer": "beta",
    }
    assert (unknown["rack"], unknown["other_rack"], unknown["lost_share"]) == (None, "r1", 1.0)
    assert unknown["round_trip_p99_us"] is None
    assert len(rack_pairs(api, limit=1)) == 1
    assert next(each["num_lost"] for each in rack_pairs(api, hours=3) if each["rack"] == "r1") == 120


class Probing:
    """A host's worker against the real API; its time is the test's."""

    def __init__(self, api: Api, token: str) -> None:
        self.reported: list[ProbeEvent] = []
        self.stop = threading.Event()
        self.now_s = 1000.0
        self._api = api
        self.token = token
        clocks = Clocks(boottime_ms=lambda: round(self.now_s * 1000))
        chance = random.Random(7)  # noqa: S311  # jitter, no secret
        self.worker = PairProbeWorker(HttpPairProbeServer(self.post), 0, "boot-1", clocks, chance, self.reported.extend)

    def post(self, path: str, content: bytes, headers: Mapping[str, str]) -> httpx.Response:
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **headers}
        answer: httpx.Response = self._api.client.post(path, content=content, headers=sent)
        return answer

    def turn(self, *, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.worker.turn(self.stop)

    def end(self) -> None:
        self.stop.set()
        if self.worker.responder is not None:
            self.worker.responder.close()


def test_two_hosts_probe_each_other_and_an_operator_reads_it_by_racks(api: Api, beta: NodeId) -> None:
    alpha, other = Probing(api, api.tokens["node"]), Probing(api, key_for(api, beta, "beta"))
    other.turn()
    for _ in range(6):
        alpha.turn(after_s=60)
    alpha.turn(after_s=2 * ROUND_S - 700)
    (round_told,) = alpha.reported
    assert (round_told.text, round_told.values["sent"], round_told.values["lost"]) == (beta, 120, 0)
    events = (event_report(round_told, "boot-1", is_open=False),)
    body = report(1, round(api.units.clock().timestamp() * 1000), events=events)
    assert alpha.post("/v1/telemetry", msgspec.json.encode(body), {}).status_code == 200
    (found,) = rack_pairs(api)
    assert (found["rack"], found["other_rack"], found["num_sent"], found["num_lost"]) == ("r1", "r2", 120, 0)
    assert found["round_trip_p99_us"] == round_told.values["round_trip_p99_us"]
    alpha.end()
    other.end()
