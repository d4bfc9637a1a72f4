"""How a tenant's secrets are used: when each was last read, by which attempts, and its stored versions. No value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import func, select

from control.core.paging import Part
from control.core.records import records_of
from control.core.unit_of_work import UnitOfWork
from control.secrets.tenant_secrets import SecretRecord, get_secret, list_secrets
from muster.db.models import AuditEntry, Job, JobSecret, SecretVersion
from muster.db.models.jobs import IS_OPEN
from muster.domain.ids import SecretId, TenantId
from muster.domain.principals import Permission

_READ: Final = "secret.read"


@dataclass(frozen=True, slots=True)
class SecretUse:
    """A secret. ``last_read_at``: by a host, None for never. ``num_open_jobs``: that name it and have not ended."""

    secret: SecretRecord
    last_read_at: datetime | None
    num_open_jobs: int


class StoredVersion(msgspec.Struct, frozen=True):
    """One stored value, without it. Older ones are removed."""

    version: int
    num_bytes: int
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True)
class SecretReading:
    """One read by a host, as it is in the audit: ``detail`` has version, job, attempt and host."""

    at: datetime
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SecretDetail:
    """A secret with its versions. ``readings``: the newest; None for a reader who may not read the audit."""

    used: SecretUse
    versions: Sequence[StoredVersion]
    readings: Sequence[SecretReading] | None


def list_used(unit: UnitOfWork, part: Part) -> Sequence[SecretUse]:
    """Return the secrets that the reader may know, as ``list_secrets`` does, with their use."""
    unit.principal.require(Permission.SECRET_READ)
    return _with_use(unit, list_secrets(unit, part))


def detail_of(unit: UnitOfWork, secret_id: SecretId, *, most_readings: int) -> SecretDetail:
    """Raise ``NotFoundError`` for a missing secret and for another tenant's alike."""
    unit.principal.require(Permission.SECRET_READ)
    found = _with_use(unit, [get_secret(unit, secret_id)])[0]
    versions = select(SecretVersion).where(SecretVersion.secret_id == secret_id).order_by(SecretVersion.version.desc())
    stored = records_of(unit.session.scalars(versions), StoredVersion)
    readings = _readings(unit, secret_id, most_readings) if unit.principal.may(Permission.AUDIT_READ) else None
    return SecretDetail(found, stored, readings)


def _readings(unit: UnitOfWork, secret_id: SecretId, limit: int) -> Sequence[SecretReading]:
    entries = select(AuditEntry.at, AuditEntry.detail).where(
        AuditEntry.subject_id == secret_id, AuditEntry.action == _READ
    )
    return [
        SecretReading(*row) for row in unit.session.execute(entries.order_by(AuditEntry.serial.desc()).limit(limit))
    ]


def _with_use(unit: UnitOfWork, secrets: Sequence[SecretRecord]) -> list[SecretUse]:
    ids = [secret.id for secret in secrets]
    reads = (
        select(AuditEntry.subject_id, func.max(AuditEntry.at))
        .where(AuditEntry.subject_id.in_(ids), AuditEntry.action == _READ)
        .group_by(AuditEntry.subject_id)
    )
    last = {str(secret_id): at for secret_id, at in unit.session.execute(reads)}
    num_open = _open_jobs(unit, secrets)
    return [SecretUse(each, last.get(each.id), num_open.get((each.tenant_id, each.name), 0)) for each in secrets]


def _open_jobs(unit: UnitOfWork, secrets: Sequence[SecretRecord]) -> Mapping[tuple[TenantId, str], int]:
    tenants, names = {each.tenant_id for each in secrets}, {each.name for each in secrets}
    query = (
        select(Job.tenant_id, JobSecret.name, func.count())
        .join(JobSecret, JobSecret.job_id == Job.id)
        .where(Job.tenant_id.in_(tenants), JobSecret.name.in_(names), IS_OPEN)
        .group_by(Job.tenant_id, JobSecret.name)
    )
    return {(tenant_id, name): number for tenant_id, name, number in unit.session.execute(query)}
