"""The secrets that jobs name: checked when a job is submitted, and read for its hosts while an attempt of it lives."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork
from control.secrets.envelopes import Envelope, Place, opened
from control.secrets.key_wrapping import KeyWrapper, WrappedKey
from muster.db.models import JobSecret, Node, Secret, SecretVersion
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import JobId, TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.states import Contact
from muster.wire.host import LAID_SECRETS, SEALED_SECRETS

MOST_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class StoredValue:
    """The envelope of the value that an attempt gets, and where it belongs."""

    place: Place
    envelope: Envelope

    def opened(self, keys: KeyWrapper) -> bytes:
        """Return the value. Raises ``SecretKeyError``."""
        return opened(keys, self.place, self.envelope)


def require_secrets(session: Session, spec: JobSpec, tenant_id: TenantId) -> tuple[str, ...]:
    """Return which of the job's secrets its tenant has here. The others must be files that an operator laid on hosts.

    Raises:
        ValidationFailedError: one is limited to other jobs, or there is none of that name and no host keeps files.
    """
    if not spec.secret_names:
        return ()
    rows = {row.name: row for row in session.scalars(select(Secret).where(Secret.tenant_id == tenant_id))}
    for name in spec.secret_names:
        if name in rows:
            _require_for(rows[name], spec.name, "/secrets")
    missing = [name for name in spec.secret_names if name not in rows]
    if missing and not _may_be_laid(session):
        raise _no_such(missing, rows, "/secrets")
    return tuple(name for name in spec.secret_names if name in rows)


def require_deploy_secret(session: Session, name: str | None, job_name: str, tenant_id: TenantId) -> None:
    """Raise ValidationFailedError: the tenant has no such secret, or it is limited to other jobs."""
    if name is None:
        return
    rows = {row.name: row for row in session.scalars(select(Secret).where(Secret.tenant_id == tenant_id))}
    if name not in rows:
        raise _no_such([name], rows, "/program/git/secret")
    _require_for(rows[name], job_name, "/program/git/secret")


def deploy_value(session: Session, name: str, job_name: str, tenant_id: TenantId) -> StoredValue | None:
    """Return the newest value of a secret that opens a repository; None: it was deleted, or limited to other jobs."""
    query = (
        select(Secret, SecretVersion)
        .join(SecretVersion, SecretVersion.secret_id == Secret.id)
        .where(Secret.tenant_id == tenant_id, Secret.name == name)
        .order_by(SecretVersion.version.desc())
    )
    found = session.execute(query.limit(1)).one_or_none()
    if found is None or not _may_use(found[0], job_name):
        return None
    return _stored(tenant_id, *found)


def _stored(tenant_id: TenantId, row: Secret, version: SecretVersion) -> StoredValue:
    wrapped = WrappedKey(version.key_id, version.wrapped_key)
    envelope = Envelope(wrapped, version.nonce, version.sealed, version.num_bytes)
    return StoredValue(Place(tenant_id, row.id, row.name, version.version), envelope)


def _may_use(row: Secret, job_name: str) -> bool:
    return not row.jobs or job_name in row.jobs


def _require_for(row: Secret, job_name: str, pointer: str) -> None:
    if not _may_use(row, job_name):
        words = f"{row.name} is only for jobs named {', '.join(row.jobs)}, and this one is {job_name}"
        raise ValidationFailedError.at(pointer, "not_for_this_job", words)


def _no_such(missing: Sequence[str], there: Collection[str], pointer: str) -> ValidationFailedError:
    words = f"there is no secret {', '.join(missing)}; {_there(sorted(there))}. Set it: muster secret set {missing[0]}"
    return ValidationFailedError.at(pointer, "no_such_secret", words)


def _there(names: Sequence[str]) -> str:
    if not names:
        return "the tenant has none"
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"there are {', '.join(names[:MOST_LISTED])}{more}"


def _may_be_laid(session: Session) -> bool:
    """Return whether a host keeps files of its operator, or may keep some: it is older, or none has reported."""
    may = or_(Node.capabilities.contains([LAID_SECRETS]), ~Node.capabilities.contains([SEALED_SECRETS]))
    query = select(func.count(), func.bool_or(may)).where(Node.contact != Contact.LOST)
    num_reporting, is_possible = session.execute(query).one()
    return not num_reporting or bool(is_possible)


def note_secrets(unit: UnitOfWork, job_id: JobId, names: Sequence[str]) -> None:
    """Store which secrets of its tenant a new job names. The job's row is stored already."""
    unit.session.add_all([JobSecret(job_id=job_id, name=name) for name in names])


def named_by(session: Session, job_id: JobId) -> tuple[str, ...]:
    """Return the secrets of its tenant that the job names; none of a job that an earlier release accepted."""
    query = select(JobSecret.name).where(JobSecret.job_id == job_id)
    return tuple(session.scalars(query.order_by(JobSecret.name)))


def values_for(
    session: Session, job_id: JobId, job_name: str, tenant_id: TenantId, placed_at: datetime
) -> Iterator[StoredValue]:
    """Yield the values that an attempt gets: the newest that were stored when it was placed.

    So all hosts of a gang get the same, even if one is rotated meanwhile. A secret that was deleted since is left out.
    """
    query = (
        select(Secret, SecretVersion)
        .join(SecretVersion, SecretVersion.secret_id == Secret.id)
        .where(Secret.tenant_id == tenant_id, Secret.name.in_(named_by(session, job_id)))
    )
    kept: dict[Secret, list[SecretVersion]] = {}
    for row, version in session.execute(query.order_by(SecretVersion.version)):
        kept.setdefault(row, []).append(version)
    for row in sorted(kept, key=lambda row: row.name):
        if not _may_use(row, job_name):
            continue
        of_the_time = [version for version in kept[row] if version.created_at <= placed_at]
        found = of_the_time[-1] if of_the_time else kept[row][0]
        yield _stored(tenant_id, row, found)
