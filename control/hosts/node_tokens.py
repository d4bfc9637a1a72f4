"""Short-lived tokens for agents: a signed request each hour, and two agents of one identity get none.

An agent's process names itself by a random instance that it keeps in memory alone. A new instance takes over from the
one before it; an instance that returns after another took over proves that both live: a cloned disk. Then every token
of the node is revoked, and none is issued until an operator lets the host enrol again.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import delete, select, update

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from muster.db.models import ApiKey, NodeIdentity
from muster.domain.errors import ConflictError, MusterError, UnauthenticatedError, UpgradeRequiredError
from muster.domain.ids import KeyId, NodeId
from muster.domain.principals import Permission, Principal, Role
from muster.domain.times import to_ms
from muster.identity import new_id
from muster.tokens import new_token
from muster.wire.enrolment import ENROLMENT_PROTOCOL, TokenAnswer, TokenRequest, challenge_bytes

ISSUE: Final = declare_action("node.issue_token")

LIFETIME: Final = timedelta(hours=1)
CLOCK_TOLERANCE_MS: Final = 5 * 60_000
PAST_INSTANCES: Final = 64
TOKEN_KEY_NAME: Final = "node-token"  # noqa: S105  # the name of such keys, no secret


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer, or a refusal that the caller raises once the unit is committed: a found clone must be stored."""

    answer: TokenAnswer | None = None
    refusal: MusterError | None = None


def issue(
    units: UnitOfWorkFactory, node_id: NodeId, request: TokenRequest, *, address: str | None, request_id: str | None
) -> TokenAnswer:
    """Issue a token of the role ``node`` for an hour.

    Raises:
        UnauthenticatedError: no such identity, or not its signature, in the same words.
        ConflictError: ``reason`` is ``stale_challenge`` (with ``server_time_ms`` and ``after_ms``) or ``cloned``.
    """
    if request.protocol != ENROLMENT_PROTOCOL:
        message = f"protocol {request.protocol} is not supported; this server supports {ENROLMENT_PROTOCOL}"
        raise UpgradeRequiredError(message, spoken=ENROLMENT_PROTOCOL)
    with units.read() as session:
        identity = session.get(NodeIdentity, node_id)
    if identity is None or not _is_signed(identity.public_key, node_id, request):
        raise UnauthenticatedError("no such node, or not its signature", suggestion="Enrol the host again.")
    name = f"node:{node_id}"
    principal = Principal(name=name, role=Role.NODE, node_id=node_id, address=address, request_id=request_id)

    def once() -> Decision:
        with units.begin(principal, ISSUE, quiet=True) as unit:
            return decide(unit, node_id, request, identity.public_key)

    decision = retrying(once)
    if decision.refusal is not None:
        raise decision.refusal
    if decision.answer is None:
        raise AssertionError("a decision answers or refuses")
    return decision.answer


def _is_signed(public_key: bytes, node_id: NodeId, request: TokenRequest) -> bool:
    signed = challenge_bytes(
        node_id, boot_id=request.boot_id, instance=request.instance, nonce=request.nonce, at_ms=request.at_ms
    )
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(request.signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def decide(unit: UnitOfWork, node_id: NodeId, request: TokenRequest, public_key: bytes) -> Decision:
    """Decide within a unit about a request with a valid signature by ``public_key``.

    One request of a node at a time.
    """
    unit.principal.require(Permission.HOST_REPORT)
    statement = select(NodeIdentity).where(NodeIdentity.node_id == node_id).with_for_update()
    identity = unit.session.scalars(statement).one_or_none()
    if identity is None or identity.public_key != public_key:
        return Decision(refusal=UnauthenticatedError("this node has another key now"))
    now_ms = to_ms(unit.now)
    if request.at_ms <= identity.challenge_ms or abs(request.at_ms - now_ms) > CLOCK_TOLERANCE_MS:
        return Decision(refusal=_stale(now_ms, identity.challenge_ms))
    identity.challenge_ms = request.at_ms
    if identity.cloned_at is not None:
        return Decision(refusal=_cloned())
    if _proves_clone(identity, request):
        _end_both(unit, identity, request)
        return Decision(refusal=_cloned())
    if identity.instance != request.instance:
        _take_over(unit, identity, request)
    return Decision(answer=_issue(unit, identity))


def _stale(now_ms: int, after_ms: int) -> ConflictError:
    return ConflictError(
        "the signed time is too far from ours, or not later than the one before",
        suggestion="Sign again with a time near server_time_ms and above after_ms.",
        reason="stale_challenge",
        server_time_ms=now_ms,
        after_ms=after_ms,
    )


def _cloned() -> ConflictError:
    return ConflictError(
        "two agents live with this identity: the disk was cloned, and neither gets a token",
        suggestion="Stop the clone, delete its node_key, and enrol the host again with a new join token.",
        reason="cloned",
    )


def _proves_clone(identity: NodeIdentity, request: TokenRequest) -> bool:
    if identity.instance == request.instance:
        return identity.boot_id != request.boot_id
    return request.instance in identity.past_instances


def _end_both(unit: UnitOfWork, identity: NodeIdentity, request: TokenRequest) -> None:
    identity.cloned_at = unit.now
    revoke_tokens(unit, identity.node_id)
    payload = {
        "boot_ids": sorted({identity.boot_id or "", request.boot_id}),
        "addresses": [unit.principal.address],
        "instances": 2,
    }
    unit.emit("node.cloned", "node", identity.node_id, payload=payload)


def _take_over(unit: UnitOfWork, identity: NodeIdentity, request: TokenRequest) -> None:
    """Let a new instance take over.

    After a reboot the old tokens end at once, so that a clone's original must ask, and is found out, within seconds.
    Within one boot only the agent has restarted, and other processes on the host still use the old token.
    """
    before = identity.instance
    if before is not None:
        identity.past_instances = [*identity.past_instances, before][-PAST_INSTANCES:]
        payload = {"boot_id": request.boot_id, "is_new_boot": identity.boot_id != request.boot_id}
        unit.emit("node.agent_restarted", "node", identity.node_id, payload=payload)
    if identity.boot_id != request.boot_id:
        revoke_tokens(unit, identity.node_id)
    identity.instance = request.instance
    identity.boot_id = request.boot_id


def revoke_tokens(unit: UnitOfWork, node_id: NodeId) -> None:
    """Revoke at once all tokens of the node's agent. The caller checks the permission and leaves the trace."""
    unit.session.execute(
        update(ApiKey)
        .where(ApiKey.node_id == node_id, ApiKey.name == TOKEN_KEY_NAME, ApiKey.revoked_at.is_(None))
        .values(revoked_at=unit.now)
        .execution_options(synchronize_session=False)
    )


def _issue(unit: UnitOfWork, identity: NodeIdentity) -> TokenAnswer:
    """Issue a key of the existing kind, so that every route of hosts takes it, and delete the node's expired keys."""
    node_id = identity.node_id
    unit.session.execute(
        delete(ApiKey)
        .where(ApiKey.node_id == node_id, ApiKey.name == TOKEN_KEY_NAME, ApiKey.expires_at <= unit.now)
        .execution_options(synchronize_session=False)
    )
    token = new_token()
    unit.session.add(
        ApiKey(
            id=KeyId(new_id("key")),
            prefix=token.public,
            secret_sha256=token.digest,
            name=TOKEN_KEY_NAME,
            role=Role.NODE,
            node_id=node_id,
            created_at=unit.now,
            expires_at=unit.now + LIFETIME,
        )
    )
    identity.token_issued_at = unit.now
    lifetime_s = LIFETIME.total_seconds()
    return TokenAnswer(token=token.text, expires_in_s=lifetime_s, renew_after_s=lifetime_s / 2)
