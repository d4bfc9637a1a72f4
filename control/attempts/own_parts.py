"""The part of an attempt that the host of a request holds: what the host reports is about that part alone."""

from control.attempts.attempts import LoadedAttempt, lock_attempt
from control.core.unit_of_work import UnitOfWork
from muster.db.models import AttemptHost
from muster.domain.errors import NotFoundError, StaleFenceError, UpgradeRequiredError
from muster.domain.ids import AttemptId, NodeId
from muster.wire.host import PROTOCOL_VERSION


def own_attempt(unit: UnitOfWork, attempt_id: AttemptId, node_id: NodeId) -> LoadedAttempt | None:
    """Lock the attempt and return it; None if there is none, or the host holds no part of it."""
    try:
        loaded = lock_attempt(unit, attempt_id)
    except NotFoundError:
        return None
    return loaded if loaded.host(node_id) is not None else None


def require_protocol(protocol: int) -> None:
    """Raise UpgradeRequiredError unless this server supports the protocol of a host's request."""
    if protocol != PROTOCOL_VERSION:
        message = f"protocol {protocol} is not supported; this server supports {PROTOCOL_VERSION}"
        raise UpgradeRequiredError(message, spoken=PROTOCOL_VERSION)


def own_part(unit: UnitOfWork, attempt_id: AttemptId, fence: int, protocol: int) -> tuple[LoadedAttempt, AttemptHost]:
    """Lock the attempt and return it with the part that the host of this unit holds.

    Raises:
        UpgradeRequiredError: another protocol.
        StaleFenceError: the fence is not this attempt's, or the host holds no part of it.
    """
    require_protocol(protocol)
    node_id = unit.principal.node_id
    loaded = None if node_id is None else own_attempt(unit, attempt_id, node_id)
    part = None if loaded is None or node_id is None else loaded.host(node_id)
    if loaded is None or part is None or loaded.attempt.fence != fence:
        raise StaleFenceError
    return loaded, part
