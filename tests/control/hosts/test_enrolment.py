"""A host enrols once by its token; its agent proves itself by its key; two agents of one identity get nothing."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import enrolment, join_tokens, node_tokens
from control.tenants import keys
from muster.db.models import ApiKey, Event, Gpu, Incident, JoinToken, Node, NodeIdentity
from muster.domain.errors import ConflictError, ForbiddenError, MusterError, UnauthenticatedError, ValidationFailedError
from muster.domain.ids import NodeId
from muster.domain.principals import Role
from muster.domain.states import Standing
from muster.wire.enrolment import EnrolRequest, GpuClaim, TokenAnswer, TokenRequest, challenge_bytes
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, enrol_host


@dataclass
class Host:
    """An agent's identity, as it stands on a disk that may be copied."""

    name: str = "gpu-01"
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    gpus: tuple[str, ...] = ("GPU-a", "GPU-b")

    def request(self, token: str, **changes: object) -> EnrolRequest:
        claims = tuple(
            GpuClaim(
                uuid=uuid,
                slot_index=index,
                model="H100",
                memory_bytes=80 << 30,
                compute_capability="9.0",
                driver_version="570",
                serial=f"S{uuid}",
            )
            for index, uuid in enumerate(self.gpus)
        )
        fields = {"protocol": 1, "token": token, "host_name": self.name, "gpus": claims}
        return EnrolRequest(**{**fields, "public_key": self.key.public_key().public_bytes_raw(), **changes})  # type: ignore[arg-type]

    def signed(self, node_id: str, at_ms: int, *, instance: str = "i" * 16, boot_id: str = "boot-1") -> TokenRequest:
        nonce = "n" * 22
        signed = challenge_bytes(node_id, boot_id=boot_id, instance=instance, nonce=nonce, at_ms=at_ms)
        return TokenRequest(
            protocol=1,
            boot_id=boot_id,
            instance=instance,
            nonce=nonce,
            at_ms=at_ms,
            signature=self.key.sign(signed),
        )


def _join_token(units: UnitOfWorkFactory, host_name: str = "gpu-01", minutes: float = 15) -> str:
    with units.begin(OPERATOR, join_tokens.CREATE) as unit:
        made = join_tokens.create(unit, host_name=host_name, lifetime=timedelta(minutes=minutes), rack="r7")
    return made.token.text


def _enrol(units: UnitOfWorkFactory, request: EnrolRequest) -> NodeId:
    return NodeId(enrolment.enrol(units, request, address="10.0.0.9", request_id=None).node_id)


def _issue(units: UnitOfWorkFactory, node_id: NodeId, request: TokenRequest) -> TokenAnswer:
    return node_tokens.issue(units, node_id, request, address="10.0.0.9", request_id=None)


def _now_ms(clock: SetClock) -> int:
    return round(clock.now.timestamp() * 1000)


def _kinds(units: UnitOfWorkFactory) -> list[str]:
    with units.read() as session:
        return list(session.scalars(select(Event.kind).order_by(Event.id)))


@pytest.fixture
def enrolled(units: UnitOfWorkFactory) -> tuple[Host, NodeId]:
    host = Host()
    return host, _enrol(units, host.request(_join_token(units)))


def test_a_host_with_a_token_becomes_a_node_whose_gpus_are_unproven(
    units: UnitOfWorkFactory, enrolled: tuple[Host, NodeId]
) -> None:
    host, node_id = enrolled
    with units.read() as session:
        node = session.get_one(Node, node_id)
        gpus = session.scalars(select(Gpu).where(Gpu.node_id == node_id).order_by(Gpu.slot_index)).all()
        token = session.scalars(select(JoinToken)).one()
        identity = session.get_one(NodeIdentity, node_id)
    assert (node.name, node.address, node.rack, node.num_gpus) == ("gpu-01", "10.0.0.9", "r7", 2)
    assert [(gpu.uuid, gpu.standing, gpu.serial) for gpu in gpus] == [
        ("GPU-a", Standing.UNPROVEN, "SGPU-a"),
        ("GPU-b", Standing.UNPROVEN, "SGPU-b"),
    ]
    assert token.used_at is not None
    assert identity.public_key == host.key.public_key().public_bytes_raw()
    assert {"join_token.created", "node.enrolled", "node.identity_enrolled"} <= set(_kinds(units))


def test_the_rdma_ports_that_a_host_enrols_with_are_kept_and_those_of_its_next_enrolment_replace_them(
    units: UnitOfWorkFactory,
) -> None:
    host = Host()
    for ports in (("mlx5_1/1", "mlx5_0/1", "mlx5_0/1"), ("mlx5_0/1",), ()):
        node_id = _enrol(units, host.request(_join_token(units), rdma_ports=ports))
        with units.read() as session:
            assert session.get_one(Node, node_id).rdma_ports == sorted(set(ports))


@pytest.mark.parametrize("port", ["mlx5_0", "mlx5 0/1", "mlx5_0/", "/1", "mlx5_0/1\n", "x" * 70 + "/1"])
def test_what_is_no_rdma_port_is_refused_by_its_field(port: str) -> None:
    document = msgspec.to_builtins(Host().request("mst_x"))
    with pytest.raises(msgspec.ValidationError, match="rdma_ports"):
        msgspec.convert({**document, "rdma_ports": [port]}, EnrolRequest)


def test_a_token_opens_once_but_its_own_host_may_repeat_a_lost_answer(units: UnitOfWorkFactory) -> None:
    host, token = Host(), _join_token(units)
    node_id = _enrol(units, host.request(token))
    assert _enrol(units, host.request(token)) == node_id
    assert "node.ports_enrolled" not in _kinds(units)
    assert _enrol(units, host.request(token, rdma_ports=("mlx5_0/1",))) == node_id
    with units.read() as session:
        assert session.get_one(Node, node_id).rdma_ports == ["mlx5_0/1"], "its driver has loaded since"
    assert "node.ports_enrolled" in _kinds(units)
    with pytest.raises(ConflictError, match="used before"):
        _enrol(units, Host(gpus=("GPU-x",)).request(token))


def test_of_many_hosts_with_one_token_one_enrols(units: UnitOfWorkFactory) -> None:
    token = _join_token(units)
    hosts = [Host(gpus=(f"GPU-{number}",)) for number in range(4)]

    def tried(host: Host) -> NodeId | MusterError:
        try:
            return _enrol(units, host.request(token))
        except MusterError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(tried, hosts))
    assert sum(isinstance(outcome, str) for outcome in outcomes) == 1, outcomes
    assert {type(outcome) for outcome in outcomes if not isinstance(outcome, str)} <= {
        ConflictError,
        join_tokens.TokenUsedError,
    }


def test_one_host_that_sends_its_request_twice_at_once_is_one_node(units: UnitOfWorkFactory) -> None:
    token, host = _join_token(units), Host()
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: _enrol(units, host.request(token)), range(3)))
    assert len(set(made)) == 1


def test_a_token_that_is_late_foreign_or_unknown_opens_nothing(units: UnitOfWorkFactory, clock: SetClock) -> None:
    token = _join_token(units)
    with pytest.raises(ForbiddenError):
        _enrol(units, Host(name="gpu-02").request(token))
    other = _join_token(units)
    unknown = other[:-1] + ("y" if other.endswith("x") else "x")
    with pytest.raises(UnauthenticatedError):
        _enrol(units, Host().request(unknown))
    clock.advance(901)
    with pytest.raises(UnauthenticatedError, match="no longer valid"):
        _enrol(units, Host().request(token))
    with units.read() as session:
        assert session.scalars(select(Node)).all() == []


def test_a_join_token_is_no_key_and_a_key_no_join_token(units: UnitOfWorkFactory) -> None:
    with pytest.raises(UnauthenticatedError):
        keys.authenticate(units, _join_token(units), address=None, request_id=None)
    with units.begin(OPERATOR, keys.CREATE) as unit:
        key = keys.create(unit, name="op", role=Role.OPERATOR)
    with pytest.raises(UnauthenticatedError):
        _enrol(units, Host().request(key.token.text))


@pytest.mark.parametrize("minutes", [0, -1, 60 * 24 + 1])
def test_a_join_token_lives_for_a_day_at_most(units: UnitOfWorkFactory, minutes: float) -> None:
    with pytest.raises(ValidationFailedError):
        _join_token(units, minutes=minutes)


def test_a_gpu_of_another_node_is_refused_by_name_and_the_token_stays_good(units: UnitOfWorkFactory) -> None:
    enrol_host(units, "alpha")
    token = _join_token(units)
    thief = Host(gpus=("GPU-mine", "GPU-alpha-1"))
    with pytest.raises(ConflictError, match="GPU-alpha-1 belongs to node alpha"):
        _enrol(units, thief.request(token))
    with pytest.raises(ConflictError):
        _enrol(units, thief.request(token))
    with units.read() as session:
        (told,) = session.scalars(select(Incident)).all()
        (event,) = session.scalars(select(Event).where(Event.kind == "incident.opened")).all()
    assert (told.kind, told.subject_id, event.subject_id) == ("gpu_claimed_twice", "GPU-alpha-1", told.id)
    assert told.summary == f"GPU-alpha-1 is enrolled on alpha, and {thief.name} claims it too"
    thief.gpus = ("GPU-mine",)
    assert _enrol(units, thief.request(token))


def test_a_cloned_disk_that_enrols_under_a_new_name_is_refused_by_its_key(
    units: UnitOfWorkFactory, enrolled: tuple[Host, NodeId]
) -> None:
    host, _ = enrolled
    clone = Host(name="gpu-02", key=host.key, gpus=("GPU-y",))
    with pytest.raises(ConflictError, match="belongs to node gpu-01"):
        _enrol(units, clone.request(_join_token(units, "gpu-02")))


def test_a_slot_that_holds_another_gpu_is_refused_and_a_new_slot_is_added(
    units: UnitOfWorkFactory, enrolled: tuple[Host, NodeId]
) -> None:
    host, node_id = enrolled
    host.gpus = ("GPU-a", "GPU-c")
    with pytest.raises(ConflictError, match="slot 1"):
        _enrol(units, host.request(_join_token(units)))
    host.gpus = ("GPU-a", "GPU-b", "GPU-c")
    assert _enrol(units, host.request(_join_token(units))) == node_id
    with units.read() as session:
        assert session.get_one(Node, node_id).num_gpus == 3
        event = session.scalars(select(Event).where(Event.kind == "node.gpus_added")).one()
    assert event.payload == {"num_gpus": 3, "gpus": ["GPU-c"]}


def test_a_signed_request_gives_a_key_of_the_node_for_an_hour(
    units: UnitOfWorkFactory, enrolled: tuple[Host, NodeId], clock: SetClock
) -> None:
    host, node_id = enrolled
    answer = _issue(units, node_id, host.signed(node_id, _now_ms(clock)))
    assert (answer.expires_in_s, answer.renew_after_s) == (3600, 1800)
    principal = keys.authenticate(units, answer.token, address=None, request_id=None)
    assert (principal.role, principal.node_id) == (Role.NODE, node_id)
    clock.advance(1800)
    _issue(units, node_id, host.signed(node_id, _now_ms(clock)))
    keys.authenticate(units, answer.token, address=None, request_id=None)
    clock.advance(1801)
    with pytest.raises(UnauthenticatedError):
        keys.authenticate(units, answer.token, address=None, request_id=None)
    _issue(units, node_id, host.signed(node_id, _now_ms(clock)))
    with units.read() as session:
        assert len(session.scalars(select(ApiKey)).all()) == 2, "the expired one is cleared away"


def test_a_recorded_request_opens_nothing_and_another_key_neither(
    units: UnitOfWorkFactory, enrolled: tuple[Host, NodeId], clock: SetClock
) -> None:
    host, node_id = enrolled
    request = host.signed(node_id, _now_ms(clock))
    _issue(units, node_id, request)
    with pytest.raises(ConflictError) as refused:
        _issue(units, node_id, request)
    assert refused.value.extra["reason"] == "stale_challenge"
    with pytest.raises(UnauthenticatedError):
        _issue(units, node_id, Host().signed(node_id, _now_ms(clock) + 1))
    with pytest.raises(UnauthenticatedError):
        _issue(units, NodeId("node_00000000000000000000000000"), host.signed(node_id, _now_ms(clock) + 2))


@pytest.mark.parametrize("off_s", [-301, 301])
def test_a_host_whose_clock_is_far_off_is_reported_the_servers_time(
    units: UnitOfWorkFactory, enrolled: tuple[Host, NodeId], clock: SetClock, off_s: int
) -> None:
    host, node_id = enrolled
    with pytest.raises(ConflictError) as refused:
        _issue(units, node_id, host.signed(node_id, _now_ms(clock) + off_s * 1000))
    assert refused.value.extra["server_time_ms"] == _now_ms(clock)
    _issue(units, node_id, host.signed(node_id, _now_ms(clock)))


def _refusal(units: UnitOfWorkFactory, node_id: NodeId, request: TokenRequest) -> str:
    with pytest.raises(MusterError) as refused:
        _issue(units, node_id, request)
    return str(refused.value.extra.get("reason"))


def test_a_restarted_agent_takes_over_and_the_hosts_other_programs_keep_their_token(
    units: UnitOfWorkFactory, enrolled: tuple[Host, NodeId], clock: SetClock
) -> None:
    host, node_id = enrolled
    before = _issue(units, node_id, host.signed(node_id, _now_ms(clock)))
    _issue(units, node_id, host.signed(node_id, _now_ms(clock) + 1, instance="j" * 16))
    keys.authenticate(units, before.token, address=None, request_id=None)
    assert _kinds(units).count("node.agent_restarted") == 1


def test_a_reboot_ends_the_tokens_of_the_boot_before(
    units: UnitOfWorkFactory, enrolled: tuple[Host, NodeId], clock: SetClock
) -> None:
    host, node_id = enrolled
    before = _issue(units, node_id, host.signed(node_id, _now_ms(clock)))
    _issue(units, node_id, host.signed(node_id, _now_ms(clock) + 1, instance="j" * 16, boot_id="boot-2"))
    with pytest.raises(UnauthenticatedError):
        keys.authenticate(units, before.token, address=None, request_id=None)


def test_two_agents_of_one_disk_are_both_refused_until_the_host_enrols_again(
    units: UnitOfWorkFactory, enrolled: tuple[Host, NodeId], clock: SetClock
) -> None:
    host, node_id = enrolled
    at_ms = _now_ms(clock)
    original, clone = {"instance": "i" * 16, "boot_id": "boot-1"}, {"instance": "j" * 16, "boot_id": "boot-2"}
    _issue(units, node_id, host.signed(node_id, at_ms, **original))
    taken = _issue(units, node_id, host.signed(node_id, at_ms + 1, **clone))
    assert _refusal(units, node_id, host.signed(node_id, at_ms + 2, **original)) == "cloned"
    assert _refusal(units, node_id, host.signed(node_id, at_ms + 3, **clone)) == "cloned"
    with pytest.raises(UnauthenticatedError):
        keys.authenticate(units, taken.token, address=None, request_id=None)
    assert _kinds(units).count("node.cloned") == 1
    host.key = Ed25519PrivateKey.generate()
    assert _enrol(units, host.request(_join_token(units))) == node_id
    _issue(units, node_id, host.signed(node_id, at_ms + 4))


def test_a_replayed_request_of_an_earlier_instance_is_stale_and_proves_no_clone(
    units: UnitOfWorkFactory, enrolled: tuple[Host, NodeId], clock: SetClock
) -> None:
    host, node_id = enrolled
    at_ms = _now_ms(clock)
    recorded = host.signed(node_id, at_ms)
    _issue(units, node_id, recorded)
    _issue(units, node_id, host.signed(node_id, at_ms + 1, instance="j" * 16))
    assert _refusal(units, node_id, recorded) == "stale_challenge"
    _issue(units, node_id, host.signed(node_id, at_ms + 2, instance="j" * 16))
