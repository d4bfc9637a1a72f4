"""The host's identity to the control plane: its own Ed25519 key, made here and never sent, and its node."""

import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agents.probes.interface import HostInventory
from agents.tokens import NodeIdentity
from muster.client.transport import Problem, UnreachableError, open_http, send
from muster.durable import create_durably, write_durably
from muster.wire.enrolment import (
    ENROLMENT_PROTOCOL,
    NODE_FILE,
    EnrolAnswer,
    EnrolRequest,
    GpuClaim,
    TokenAnswer,
    TokenRequest,
)

KEY_FILE: Final = "node_key"
_KEY_BYTES: Final = 32
_UNPROCESSABLE: Final = 422
_UNKNOWN: Final = re.compile(r"unknown field `(\w{1,64})`", re.ASCII)
"""An unknown field as msgspec names it, in the detail of the server's problem."""
_OPTIONAL: Final[Mapping[str, Any]] = {"rdma_ports": ()}
"""Fields of an enrolment that came after the first release, with their empty values: a server may do without them."""
_log = structlog.get_logger(__name__)


class IdentityError(Exception):
    """The host has no usable identity. The text states what to do."""


class _Stored(msgspec.Struct, frozen=True):
    """Stored identity. ``num_gpus``, ``rdma_ports``: of the enrolled inventory, unknown for earlier enrolments."""

    node_id: str
    num_gpus: int | None = None
    rdma_ports: tuple[str, ...] = ()


class EnrolmentClient:
    """Enrolment and tokens over HTTP. Each call raises ``UnreachableError`` or ``Problem``."""

    def __init__(self, api_url: str, *, ca_file: Path | None = None) -> None:
        self._http = open_http(api_url, "", ca_file=ca_file)

    def close(self) -> None:
        self._http.close()

    def enrol(self, request: EnrolRequest) -> EnrolAnswer:
        answer: EnrolAnswer = self._post("/v1/enrol", request, EnrolAnswer)
        return answer

    def ask_token(self, node_id: str, request: TokenRequest) -> TokenAnswer:
        answer: TokenAnswer = self._post(f"/v1/nodes/{node_id}/token", request, TokenAnswer)
        return answer

    def _post(self, path: str, message: msgspec.Struct, answer_type: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        answer = send(self._http, "POST", path, content=msgspec.json.encode(message), headers=headers)
        try:
            return msgspec.json.decode(answer.content, type=answer_type)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnreachableError(f"the answer of {path} cannot be read: {error}") from error


class Enroller(Protocol):
    def enrol(self, request: EnrolRequest) -> EnrolAnswer: ...


def load_or_make_key(path: Path) -> Ed25519PrivateKey:
    """Return the node's key, made on the first call: 32 bytes, mode 0600.

    Raises:
        IdentityError: others can read it, or it is no key.
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        create_durably(path, Ed25519PrivateKey.generate().private_bytes_raw())
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise IdentityError(f"{path}: others can read the node's key; delete it and enrol the host again")
    content = path.read_bytes()
    if len(content) != _KEY_BYTES:
        raise IdentityError(f"{path}: holds no Ed25519 key of {_KEY_BYTES} bytes; delete it and enrol the host again")
    return Ed25519PrivateKey.from_private_bytes(content)


def stored_identity(folder: Path) -> NodeIdentity | None:
    """Return the identity, None: the host has not enrolled yet. Raises as ``load_or_make_key``."""
    stored = _stored(folder)
    return None if stored is None else NodeIdentity(stored.node_id, load_or_make_key(folder / KEY_FILE))


def enrolled_gpus(folder: Path) -> int | None:
    """Return how many GPUs this host enrolled with; None where that is unknown. Raises IdentityError."""
    stored = _stored(folder)
    return None if stored is None else stored.num_gpus


def enrolled_ports(folder: Path) -> frozenset[str]:
    """Return the RDMA ports that this host enrolled with; none where that is unknown. Raises IdentityError."""
    stored = _stored(folder)
    return frozenset() if stored is None else frozenset(stored.rdma_ports)


def _stored(folder: Path) -> _Stored | None:
    try:
        return msgspec.json.decode((folder / NODE_FILE).read_bytes(), type=_Stored)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise IdentityError(f"{folder / NODE_FILE}: cannot be read; delete it and enrol the host again") from error


def enrol(
    folder: Path,
    client: Enroller,
    *,
    join_token: str,
    host_name: str,
    inventory: HostInventory,
    rdma_ports: Collection[str] = (),
) -> NodeIdentity:
    """Exchange the join token for a node, and remember it. Interrupted anywhere, it may be called again.

    A server of an earlier release gets only the fields that it knows; all of them are remembered here nevertheless.

    Raises:
        Problem: the server refuses: the token, or a GPU of another node.
        UnreachableError: the server does not answer.
    """
    key = load_or_make_key(folder / KEY_FILE)
    request = EnrolRequest(
        protocol=ENROLMENT_PROTOCOL,
        token=join_token,
        host_name=host_name.lower(),
        public_key=key.public_key().public_bytes_raw(),
        gpus=claims_of(inventory),
        is_simulated=inventory.is_simulated,
        rdma_ports=tuple(sorted(rdma_ports)),
    )
    answer = _accepted(client, request)
    write_durably(
        folder / NODE_FILE, msgspec.json.encode(_Stored(answer.node_id, len(request.gpus), request.rdma_ports))
    )
    _log.info("host_enrolled", node_id=answer.node_id, host_name=host_name, num_gpus=len(request.gpus))
    return NodeIdentity(answer.node_id, key)


def _accepted(client: Enroller, request: EnrolRequest) -> EnrolAnswer:
    """Enrol without the fields that the server does not know, where it can do without: each is logged."""
    while True:
        try:
            return client.enrol(request)
        except Problem as refused:
            unknown = _not_known(refused, request)
            if unknown is None:
                raise
            suggestion = "Upgrade the control plane before its hosts."
            _log.warning("server_is_older", passed_over=unknown, suggestion=suggestion)
            request = msgspec.structs.replace(request, **{unknown: _OPTIONAL[unknown]})


def _not_known(refused: Problem, request: EnrolRequest) -> str | None:
    """Return the field that an older server refuses by name; None where that is not the cause, or it was left out."""
    found = _UNKNOWN.search(refused.detail) if refused.status == _UNPROCESSABLE else None
    name = "" if found is None else str(found[1])
    return name if name in _OPTIONAL and getattr(request, name) != _OPTIONAL[name] else None


def claims_of(inventory: HostInventory) -> tuple[GpuClaim, ...]:
    """Return the GPUs' claims. Raises IdentityError: a GPU does not report its memory, so it cannot be placed."""
    silent = [gpu.uuid for gpu in inventory.gpus if not gpu.memory_bytes]
    if silent:
        raise IdentityError(f"these GPUs do not report their memory size: {', '.join(silent)}")
    return tuple(
        GpuClaim(
            uuid=gpu.uuid,
            slot_index=gpu.index,
            model=(gpu.model or "unknown")[:128],
            memory_bytes=gpu.memory_bytes or 0,
            compute_capability=gpu.compute_capability or "unknown",
            driver_version=inventory.driver_version or "unknown",
            serial=gpu.serial,
        )
        for gpu in inventory.gpus
    )


def join_token_from(path: Path) -> str:
    """Return the join token. Raises IdentityError: it cannot be read, or others can read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityError(f"the join token {path} cannot be read ({error})") from error
    if mode & 0o077:
        raise IdentityError(f"{path}: others can read the join token; set its mode to 0600")
    return text
