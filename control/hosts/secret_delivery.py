"""Secrets for a host: of an attempt that is its own and live, sealed to the key of its question, every read audited.

A read is audited before its value is opened: an entry may be of one that failed, and no read is without an entry.
"""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import select

from control.attempts.own_parts import own_part
from control.core.unit_of_work import UnitOfWork, declare_action
from control.secrets.job_secrets import StoredValue, deploy_value, named_by, values_for
from control.secrets.key_wrapping import KeyWrapper
from muster.db.models import Job, Node
from muster.domain.errors import StaleFenceError, ValidationFailedError
from muster.domain.ids import AttemptId, NodeId
from muster.domain.principals import Permission
from muster.domain.states import AttemptState, HostPartState
from muster.wire.host import SecretsAnswer, SecretsRequest
from muster.wire.sealed_secrets import context_of, sealed_for

READ: Final = declare_action("host.secrets")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The envelopes for one question of a host. ``missing``: names of the job that no longer exist."""

    context: bytes
    public_key: bytes
    values: tuple[StoredValue, ...]
    missing: tuple[str, ...]

    def sealed(self, keys: KeyWrapper) -> SecretsAnswer:
        """Return the answer, once the reads are in the audit. Raises ``SecretKeyError``."""
        values = {stored.place.name: stored.opened(keys) for stored in self.values}
        try:
            public, sealed = sealed_for(self.public_key, values, self.context)
        except ValueError as fault:
            raise ValidationFailedError.at("/public_key", "no_key", "is no X25519 key") from fault
        return SecretsAnswer(public_key=public, sealed=sealed, missing=self.missing)


def read_for_host(unit: UnitOfWork, attempt_id: AttemptId, request: SecretsRequest) -> Delivery:
    """Return the envelopes for a part that the host has claimed and not started, and note each read.

    Raises:
        StaleFenceError: it is not this host's, not the current attempt, of another boot, or it has started or ended.
    """
    unit.principal.require(Permission.HOST_REPORT)
    loaded, part = own_part(unit, attempt_id, request.fence, request.protocol)
    job, attempt = loaded.job, loaded.attempt
    node_id = NodeId(str(unit.principal.node_id))
    boot_id = unit.session.scalar(select(Node.boot_id).where(Node.id == node_id))
    is_live = attempt.state is not AttemptState.ENDED and part.state is HostPartState.CLAIMED
    if not is_live or not boot_id == part.boot_id == request.boot_id:
        raise StaleFenceError
    values = tuple(values_for(unit.session, job.id, job.name, job.tenant_id, attempt.placed_at))
    found = {stored.place.name for stored in values}
    for stored in values:
        _note_read(unit, job, stored, node_id, attempt.id)
    return Delivery(
        context=context_of(node_id, attempt.id, attempt.fence),
        public_key=request.public_key,
        values=values,
        missing=tuple(name for name in named_by(unit.session, job.id) if name not in found),
    )


def read_deploy_secret(
    unit: UnitOfWork, job: Job, name: str, node_id: NodeId, part: tuple[str, int], public_key: bytes
) -> Delivery:
    """Return the envelope of the secret that opens a job's repository, for the part that fetches it; note the read.

    ``part``: its id and fence.
    """
    stored = deploy_value(unit.session, name, job.name, job.tenant_id)
    if stored is not None:
        _note_read(unit, job, stored, node_id, part[0])
    return Delivery(
        context=context_of(node_id, *part),
        public_key=public_key,
        values=() if stored is None else (stored,),
        missing=(name,) if stored is None else (),
    )


def _note_read(unit: UnitOfWork, job: Job, stored: StoredValue, node_id: NodeId, part_id: str) -> None:
    place = stored.place
    detail = {
        "name": place.name,
        "version": place.version,
        "node_id": node_id,
        "attempt_id": part_id,
        "job_id": job.id,
    }
    unit.emit("secret.read", "secret", place.secret_id, tenant_id=job.tenant_id, payload=detail)
    unit.audit("secret.read", "secret", place.secret_id, tenant_id=job.tenant_id, detail=detail)
