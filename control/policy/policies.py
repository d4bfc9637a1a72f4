"""The active policy: one row of ``policy_versions``, validated once in each process that reads it."""

import functools
from collections.abc import Sequence
from typing import Any, Final

import structlog
from pydantic import ValidationError
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, UnitOfWorkFactory, declare_action
from control.core.versions import hold_versions, store_version
from control.policy.cohorts import rekey
from muster.db.models import PolicyVersion
from muster.db.pipeline.batched import query_together
from muster.db.pipeline.pg_pipeline import Query
from muster.domain.errors import MusterError
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.limits import LimitPolicy
from muster.domain.strict import STORED

ACTIVATE: Final = declare_action("policy.activate")
_log = structlog.get_logger(__name__)
_ACTIVE: Final[Query] = ("SELECT version, document::text FROM policy_versions WHERE is_active", {})


def active_policy(session: Session) -> Policy:
    """Return the active policy, or the defaults while none is stored.

    A row that no longer validates is logged and skipped.
    """
    # By the driver: each heartbeat and each step reads it, and SQLAlchemy took more than half of that time.
    return active_policy_with(session)[0]


def active_policy_with(session: Session, *queries: Query) -> tuple[Policy, list[Sequence[Any]]]:
    """Return the active policy and the rows of further queries, all in one round trip."""
    if session.autoflush:
        session.flush()
    found, *rows = query_together(session, _ACTIVE, *queries)
    return stored_policy(*found[0]) if found else DEFAULT_POLICY, rows


def limits_at_start(units: UnitOfWorkFactory) -> LimitPolicy:
    """Return the active policy's limits, or the built-in ones if no policy can be read yet as a process starts."""
    try:
        with units.read() as session:
            return active_policy(session).limits
    except (MusterError, ProgrammingError) as error:
        _log.warning("limits_are_built_in", fault=str(error))
        return DEFAULT_POLICY.limits


def stored_policy(version: int, document: str | bytes) -> Policy:
    """Return the policy stored as this JSON, or the defaults where it no longer validates, which is logged."""
    try:
        return _validated(document)
    except ValidationError as error:
        _log.error("policy_unusable", version=version, faults=error.errors(include_input=False, include_url=False))
        return DEFAULT_POLICY


@functools.lru_cache(maxsize=8)
def _validated(document: str | bytes) -> Policy:
    """Validate each text once: policies are immutable, and a validation takes longer than most uses of one."""
    return Policy.model_validate_json(document, strict=False, context=STORED)


def hold_policies(session: Session) -> None:
    """Prevent every other change of the active policy until this transaction ends.

    Rows stay free: a holder of a GPU writes moves that name a policy, and a new policy's cohorts wait for GPUs.
    """
    hold_versions(session, PolicyVersion)


def store_policy(unit: UnitOfWork, policy: Policy, *, reason: str) -> int:
    """Make ``policy`` the active one, also for the cohorts of the GPUs that are enrolled. Return its version."""
    hold_policies(unit.session)
    before = active_policy(unit.session)
    row = store_version(unit, PolicyVersion, policy.model_dump(mode="json"), reason=reason)
    unit.emit("policy.activated", "policy", str(row.version), payload={"version": row.version, "reason": reason})
    unit.audit("policy.activate", "policy", str(row.version), reason=reason)
    if set(before.health.cohort.attributes) != set(policy.health.cohort.attributes):
        _rekey(unit, policy, row.version, reason)
    return row.version


def _rekey(unit: UnitOfWork, policy: Policy, version: int, reason: str) -> None:
    num_gpus = rekey(unit.session, policy.health.cohort)
    detail = {"version": version, "attributes": list(policy.health.cohort.attributes), "num_gpus": num_gpus}
    unit.emit("policy.cohorts_rekeyed", "policy", str(version), payload=detail)
    unit.audit("policy.rekey_cohorts", "policy", str(version), reason=reason, detail=detail)
    unit.wake(SCHEDULER_CHANNEL)
