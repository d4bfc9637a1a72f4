"""The first steps of a tenant: sign in by the command, submit a job, get its results; and which of them are done."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import exists, or_, select

from control.core.unit_of_work import UnitOfWork, declare_action
from muster.db.models import ApiKey, CommandLogin, ConsoleSession, Job
from muster.domain.ids import JobId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import JobState

READ: Final = declare_action("first_steps.read")


@dataclass(frozen=True, slots=True)
class FirstJob:
    id: JobId
    name: str
    state: JobState


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """What a tenant has done. ``is_signed_in``: a command has a key. ``ended_well``: a job that has results, if any.

    ``job``: the newest, or None.
    """

    is_signed_in: bool
    job: FirstJob | None
    ended_well: FirstJob | None


def steps_of(unit: UnitOfWork) -> FirstSteps | None:
    """Return the steps of the reader's tenant; None: the reader is of none."""
    unit.principal.require(Permission.JOB_READ)
    tenant_id = unit.principal.tenant_id
    if tenant_id is None:
        return None
    job = _newest(unit, tenant_id)
    ended_well = None if job is None else _newest(unit, tenant_id, JobState.SUCCEEDED)
    return FirstSteps(_is_signed_in(unit, tenant_id), job, ended_well)


def _newest(unit: UnitOfWork, tenant_id: TenantId, state: JobState | None = None) -> FirstJob | None:
    query = select(Job.id, Job.name, Job.state).where(Job.tenant_id == tenant_id)
    if state is not None:
        query = query.where(Job.state == state)
    row = unit.session.execute(query.order_by(Job.created_at.desc(), Job.id.desc()).limit(1)).one_or_none()
    return None if row is None else FirstJob(*row)


def _is_signed_in(unit: UnitOfWork, tenant_id: TenantId) -> bool:
    """Return whether a key of the tenant was made by ``muster login``, or used other than for pages of the console."""
    by_login = exists().where(CommandLogin.key_id == ApiKey.id)
    for_pages = exists().where(ConsoleSession.key_id == ApiKey.id)
    is_used = ApiKey.last_used_at.is_not(None) & ~for_pages
    query = select(exists().where(ApiKey.tenant_id == tenant_id, or_(by_login, is_used)))
    return bool(unit.session.scalar(query))
