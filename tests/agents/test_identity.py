"""The node's key is made once, private; a token is renewed at half its life, and again when it is refused."""

import json
import random
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from agents.identity import (
    IdentityError,
    enrol,
    enrolled_gpus,
    enrolled_ports,
    join_token_from,
    load_or_make_key,
    stored_identity,
)
from agents.probes.interface import GpuIdentity, HostInventory
from agents.tokens import NodeIdentity, NoTokenError, TokenKeeper
from muster.client.transport import Problem, UnreachableError
from muster.domain.ids import GpuUuid
from muster.wire.enrolment import EnrolAnswer, EnrolRequest, GpuClaim, TokenAnswer, TokenRequest
from muster.wire.messages import WireMessage
from tests.agents.reports import BOOT, Clock

INVENTORY = HostInventory(
    driver_version="570", gpus=(GpuIdentity(uuid=GpuUuid("GPU-a"), index=0, model="H100", memory_bytes=80 << 30),)
)


@dataclass
class Office:
    """Gives a token to each caller, or the fault that a test sets."""

    requested: list[TokenRequest] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)

    def ask(self, _node_id: str, request: TokenRequest) -> TokenAnswer:
        self.requested.append(request)
        if self.faults:
            raise self.faults.pop(0)
        return TokenAnswer(token=f"mst_{len(self.requested)}", expires_in_s=3600, renew_after_s=1800)


def _keeper(office: Office, clock: Clock, token_file: Path | None = None) -> TokenKeeper:
    return TokenKeeper(
        NodeIdentity("node_1", Ed25519PrivateKey.generate()),
        office.ask,
        BOOT,
        monotonic_ms=clock.monotonic_ms,
        wall_ms=clock.wall_ms,
        rng=random.Random(1),  # noqa: S311  # a test that repeats
        token_file=token_file,
    )


def _problem(status: int, **members: Any) -> Problem:
    return Problem(status, "conflict", "no", document=members)


class Server:
    def __init__(self) -> None:
        self.requested: list[EnrolRequest] = []

    def enrol(self, request: EnrolRequest) -> EnrolAnswer:
        self.requested.append(request)
        return EnrolAnswer(node_id="node_7")


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "agent" / "node_key"
    key = load_or_make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_make_key(path).private_bytes_raw() == key.private_bytes_raw()
    assert [entry.name for entry in path.parent.iterdir()] == ["node_key"], "no draft is left"
    path.chmod(0o640)
    with pytest.raises(IdentityError, match="others can read"):
        load_or_make_key(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(IdentityError, match="holds no Ed25519 key"):
        load_or_make_key(path)


def test_enrolment_sends_the_public_key_alone_and_is_remembered(tmp_path: Path) -> None:
    server = Server()
    assert stored_identity(tmp_path) is None
    made = enrol(tmp_path, server, join_token="mst_j", host_name="GPU-01.example", inventory=INVENTORY)
    (request,) = server.requested
    assert request.public_key == made.key.public_key().public_bytes_raw()
    assert (request.host_name, request.gpus[0].uuid, request.gpus[0].serial) == ("gpu-01.example", "GPU-a", None)
    again = stored_identity(tmp_path)
    assert again is not None
    assert (again.node_id, again.key.private_bytes_raw()) == ("node_7", made.key.private_bytes_raw())


def test_what_a_host_enrolled_with_is_known_to_its_agents_next_life(tmp_path: Path) -> None:
    server, ports = Server(), ["mlx5_1/1", "mlx5_0/1"]
    assert (enrolled_gpus(tmp_path), enrolled_ports(tmp_path)) == (None, frozenset())
    enrol(tmp_path, server, join_token="mst_j", host_name="h", inventory=INVENTORY, rdma_ports=ports)
    assert server.requested[0].rdma_ports == ("mlx5_0/1", "mlx5_1/1")
    assert (enrolled_gpus(tmp_path), enrolled_ports(tmp_path)) == (1, frozenset(ports))
    (tmp_path / "identity.json").write_text('{"node_id": "node_7", "num_gpus": 8}', encoding="ascii")
    assert (enrolled_gpus(tmp_path), enrolled_ports(tmp_path)) == (8, frozenset()), "as an older agent wrote it"


def test_a_host_without_rdma_ports_enrols_with_a_server_that_knows_of_none() -> None:
    request = EnrolRequest(protocol=1, token="mst_j", host_name="h", public_key=b"k" * 32)
    assert "rdma_ports" not in json.loads(msgspec.json.encode(request))


class OlderServer(Server):
    """Reads as the server of an earlier release does: it knows no ``rdma_ports``."""

    class Known(WireMessage, frozen=True, kw_only=True):
        protocol: int
        token: str
        host_name: str
        public_key: bytes
        gpus: tuple[GpuClaim, ...] = ()

    def enrol(self, request: EnrolRequest) -> EnrolAnswer:
        try:
            msgspec.json.decode(msgspec.json.encode(request), type=self.Known)
        except msgspec.ValidationError as error:
            raise Problem(422, "validation_failed", str(error)) from error
        return super().enrol(request)


def test_a_host_with_rdma_ports_enrols_with_a_server_that_does_not_know_them(tmp_path: Path) -> None:
    server = OlderServer()
    with capture_logs() as said:
        made = enrol(tmp_path, server, join_token="mst_j", host_name="h", inventory=INVENTORY, rdma_ports=["mlx5_0/1"])
    (request,) = server.requested
    assert (made.node_id, request.rdma_ports) == ("node_7", ())
    assert enrolled_ports(tmp_path) == {"mlx5_0/1"}, "its agent knows all the same"
    assert [each["passed_over"] for each in said if each["event"] == "server_is_older"] == ["rdma_ports"]


def test_a_simulated_host_enrols_as_a_real_one_nowhere(tmp_path: Path) -> None:
    simulated = replace(INVENTORY, is_simulated=True)
    with pytest.raises(Problem, match="is_simulated"):
        enrol(tmp_path, OlderServer(), join_token="mst_j", host_name="h", inventory=simulated)


@pytest.mark.parametrize(
    "refused",
    [
        Problem(422, "validation_failed", "Object contains unknown field `host_name`"),
        Problem(422, "validation_failed", "Object contains unknown field `serial` - at `$.gpus[...]`"),
        Problem(422, "validation_failed", "Object contains unknown field `rdma_ports`"),
        Problem(409, "conflict", "unknown field `rdma_ports`"),
    ],
)
def test_what_a_host_cannot_leave_out_is_refused_as_before(tmp_path: Path, refused: Problem) -> None:
    class Refusing(Server):
        def enrol(self, request: EnrolRequest) -> EnrolAnswer:
            self.requested.append(request)
            raise refused

    server = Refusing()
    with pytest.raises(Problem) as told:
        enrol(tmp_path, server, join_token="mst_j", host_name="h", inventory=INVENTORY)
    assert told.value is refused
    assert (len(server.requested), stored_identity(tmp_path)) == (1, None)


def test_a_gpu_that_does_not_state_its_memory_is_named(tmp_path: Path) -> None:
    silent = HostInventory(gpus=(GpuIdentity(uuid=GpuUuid("GPU-mute"), index=0),))
    with pytest.raises(IdentityError, match="GPU-mute"):
        enrol(tmp_path, Server(), join_token="mst_j", host_name="h", inventory=silent)


def test_a_join_token_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "join"
    path.write_text("mst_x\n", encoding="ascii")
    path.chmod(0o644)
    with pytest.raises(IdentityError, match="0600"):
        join_token_from(path)
    path.chmod(0o600)
    assert join_token_from(path) == "mst_x"


def test_a_token_is_renewed_at_half_its_life_and_lies_where_other_programs_find_it(tmp_path: Path) -> None:
    office, clock = Office(), Clock()
    keeper = _keeper(office, clock, tmp_path / "node.token")
    assert keeper.token() == keeper.token() == "mst_1"
    clock.advance(1800)
    assert keeper.token() == "mst_2"
    assert (tmp_path / "node.token").read_text() == "mst_2\n"
    assert stat.S_IMODE((tmp_path / "node.token").stat().st_mode) == 0o600
    first, second = office.requested
    assert first.instance == second.instance
    assert first.nonce != second.nonce
    assert first.at_ms < second.at_ms
    assert _keeper(office, clock)._instance != first.instance, "each life of the agent has its own"


def test_an_unreachable_server_costs_nothing_while_the_token_lives(tmp_path: Path) -> None:
    office, clock = Office(), Clock()
    keeper = _keeper(office, clock)
    keeper.token()
    clock.advance(1800)
    office.faults = [UnreachableError("away")] * 1000
    assert keeper.token() == keeper.token() == "mst_1"
    assert len(office.requested) == 2, "not asked again at once"
    clock.advance(1801)
    with pytest.raises(NoTokenError, match="away"):
        keeper.token()
    office.faults = []
    clock.advance(5)
    assert keeper.token().startswith("mst_")


def test_a_spurned_token_is_not_used_again(tmp_path: Path) -> None:
    office, clock = Office(), Clock()
    keeper = _keeper(office, clock)
    keeper.invalidate(keeper.token())
    assert keeper.token() == "mst_2"
    keeper.invalidate("mst_1")
    assert keeper.token() == "mst_2", "an older one's refusal says nothing of this one"


def test_a_host_with_a_wrong_clock_signs_by_the_servers_time(tmp_path: Path) -> None:
    office, clock = Office(), Clock()
    server_ms = clock.wall_ms() - 7_200_000
    office.faults = [_problem(409, reason="stale_challenge", server_time_ms=server_ms, after_ms=server_ms + 40)]
    assert _keeper(office, clock).token() == "mst_2"
    assert office.requested[1].at_ms == server_ms + 41


def test_a_cloned_identity_waits_for_a_person(tmp_path: Path) -> None:
    office, clock = Office(), Clock()
    office.faults = [_problem(409, reason="cloned")] * 3
    keeper = _keeper(office, clock)
    for _ in range(5):
        with pytest.raises(NoTokenError) as refused:
            keeper.token()
        assert refused.value.is_for_long
    assert len(office.requested) == 1, "a minute between one asking and the next"
