"""Residency rules: where a tenant's jobs may run and its data may be; and what is outside of its rule now."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.content.residency import CODE
from control.core.records import record_of
from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from control.core.visibility import may_see, visible_rows
from control.tenants.read import TenantRecord
from muster.db.models import Attempt, AttemptHost, ContentUse, Job, Node, NodeBundle, Tenant
from muster.db.models.jobs import IS_OPEN
from muster.db.queries import tenants as tree
from muster.db.queries.residency import CHECKPOINT_STORE, residencies
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.principals import Permission
from muster.domain.residency import ANY, S3_SCHEME, OutsideKind, Residency, StorePlace, read_residency
from muster.domain.states import AttemptState
from muster.sizes import size_in_words

SET: Final = declare_action("tenant.set_residency")
READ: Final = declare_action("tenant.residency")
MOST_OUTSIDE: Final = 200
_TO_DO: Final = {
    OutsideKind.RUNNING_JOB: "It continues. Drain its hosts, and its next attempt is inside; or cancel it.",
    OutsideKind.CHECKPOINTS: "Cancel it and submit it with a permitted `checkpoint.store`, or permit this one.",
    OutsideKind.CONTENT: "Permit the store. Else the tenant deletes its bundles; outputs end with their retention.",
    OutsideKind.COPIES: "Copies of bundles go as others need their room. To remove them now, stop the host worker "
    "there, delete `content` in its state folder, and start it again.",
}


@dataclass(frozen=True, slots=True)
class Outside:
    """One thing outside of the rule. ``subject_id``: of the job or tenant. ``places``: hosts or a store."""

    kind: OutsideKind
    tenant_id: TenantId
    subject_id: str
    name: str
    places: tuple[str, ...]

    @property
    def to_do(self) -> str:
        return _TO_DO[self.kind]


@dataclass(frozen=True, slots=True)
class ResidencyFound:
    """A tenant with its rule. ``own``: its own, ``holds``: with the rules of all above it.

    ``num_hosts`` of ``num_fleet_hosts`` are at its sites. ``outside``: of the tenant and all below it, at most
    ``MOST_OUTSIDE`` of each kind.
    """

    tenant: TenantRecord
    own: Residency
    holds: Residency
    num_hosts: int
    num_fleet_hosts: int
    outside: tuple[Outside, ...]


def set_residency(
    unit: UnitOfWork, tenant_id: TenantId, wanted: Residency, *, store: StorePlace | None, reason: str
) -> ResidencyFound:
    """Set the rule of a tenant and of all below it; an empty one lifts it. Nothing that runs is stopped or moved.

    ``store``: the content store of this control plane; None: there is none.

    Raises:
        NotFoundError: there is no such tenant.
        ValidationFailedError: the rule names a store that is not there, or excludes the content store.
    """
    unit.principal.require(Permission.TENANT_WRITE)
    if not unit.dry_run:
        tree.lock_guarantees(unit.session)  # a placement is committed before, or reads this rule
    tenant = unit.session.get(Tenant, tenant_id, populate_existing=True)
    if tenant is None:
        raise NotFoundError
    _require_known(wanted, store)
    before, after = tenant.residency, wanted.document() if wanted else None
    tenant.residency = after
    unit.session.flush()
    if wanted:
        _require_store(unit, tenant_id, wanted, store)
    detail = {"from": before, "to": after, "reason": reason}
    unit.emit("tenant.residency_set", "tenant", tenant_id, tenant_id=tenant_id, payload=detail)
    unit.audit("tenant.set_residency", "tenant", tenant_id, tenant_id=tenant_id, reason=reason, detail=detail)
    unit.wake(SCHEDULER_CHANNEL)
    return _found(unit, tenant, store)


def show_residency(unit: UnitOfWork, tenant_id: TenantId, *, store: StorePlace | None) -> ResidencyFound:
    """Return the rule of a tenant. Raises ``NotFoundError`` for a missing tenant and for another one alike."""
    unit.principal.require(Permission.TENANT_READ)
    tenant = unit.session.get(Tenant, tenant_id)
    if tenant is None or not may_see(unit.principal, tenant_id):
        raise NotFoundError
    return _found(unit, tenant, store)


def _require_known(wanted: Residency, store: StorePlace | None) -> None:
    """Refuse names of content stores that this control plane does not have: probably they are misspelt."""
    names = {each for each in wanted.stores or () if not each.startswith(S3_SCHEME)}
    unknown = sorted(names - ({store.name} if store is not None else set()))
    if unknown:
        known = "no content store is configured" if store is None else f"the content store is named {store.name}"
        detail = f"there is no store {unknown[0]}: {known}. A store for checkpoints is named as s3://bucket/prefix"
        raise ValidationFailedError.at("/stores", "unknown_store", detail)


def _require_store(unit: UnitOfWork, tenant_id: TenantId, wanted: Residency, store: StorePlace | None) -> None:
    """Refuse a rule that excludes the content store, for the tenant or for one below it."""
    if store is None:
        return  # nothing is written, and what needs a store is refused
    rules = residencies(unit.session)
    for below in tree.below(unit.session, tenant_id):
        refusal = rules.get(below, ANY).content_refusal(store)
        if refusal is not None:
            whose = "" if below == tenant_id else f" (for {below}, whose own rule holds too)"
            todo = f"permit it with the store {store.name}, or set MUSTER_STORE_SITE to the site that it is at"
            pointer = "/sites" if wanted.stores is None else "/stores"
            raise ValidationFailedError.at(pointer, CODE, f"{refusal}{whose}: {todo}")


def _found(unit: UnitOfWork, tenant: Tenant, store: StorePlace | None) -> ResidencyFound:
    labels = unit.session.scalars(select(Node.labels)).all()
    rules = residencies(unit.session)
    holds = rules.get(tenant.id, ANY)
    visible = visible_rows(unit.principal, Tenant.id)
    below = select(Tenant.id).where(Tenant.id.in_(tree.below(unit.session, tenant.id)), visible)
    bound = {each: rules[each] for each in unit.session.scalars(below) if each in rules}
    return ResidencyFound(
        tenant=record_of(tenant, TenantRecord),
        own=read_residency(tenant.residency),
        holds=holds,
        num_hosts=sum(map(holds.has_site, labels)),
        num_fleet_hosts=len(labels),
        outside=tuple(_outside(unit, bound, store)) if bound else (),
    )


def _outside(unit: UnitOfWork, rules: Mapping[TenantId, Residency], store: StorePlace | None) -> Sequence[Outside]:
    """Return what is outside of these rules, by kind."""
    return [
        *running_outside(unit.session, rules)[:MOST_OUTSIDE],
        *_checkpoints(unit, rules)[:MOST_OUTSIDE],
        *_content(unit, rules, store)[:MOST_OUTSIDE],
        *_copies(unit, rules)[:MOST_OUTSIDE],
    ]


def running_outside(session: Session, rules: Mapping[TenantId, Residency]) -> list[Outside]:
    """Return the jobs of these tenants that run on hosts outside of their rules."""
    query = (
        select(Job.tenant_id, Job.id, Job.name, Node.name, Node.labels)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(AttemptHost, AttemptHost.attempt_id == Attempt.id)
        .join(Node, Node.id == AttemptHost.node_id)
        .where(Attempt.state != AttemptState.ENDED, Job.tenant_id.in_(rules))
        .order_by(Job.created_at, Job.id, AttemptHost.node_rank)
    )
    return _by_subject(OutsideKind.RUNNING_JOB, session.execute(query), rules)


def _copies(unit: UnitOfWork, rules: Mapping[TenantId, Residency]) -> list[Outside]:
    query = (
        select(Tenant.id, Tenant.id, Tenant.name, Node.name, Node.labels)
        .distinct()
        .join(NodeBundle, NodeBundle.tenant_id == Tenant.id)
        .join(Node, Node.id == NodeBundle.node_id)
        .where(Tenant.id.in_(rules))
        .order_by(Tenant.id, Node.name)
    )
    return _by_subject(OutsideKind.COPIES, unit.session.execute(query), rules)


def _by_subject(
    kind: OutsideKind,
    found: Iterable[tuple[TenantId, str, str, str, Mapping[str, str]]],
    rules: Mapping[TenantId, Residency],
) -> list[Outside]:
    """Return each subject with the hosts that are outside; ``found``: tenant, subject, its name, host and labels."""
    hosts: dict[tuple[TenantId, str, str], list[str]] = {}
    for tenant_id, subject_id, name, host, labels in found:
        if not rules[tenant_id].has_site(labels):
            hosts.setdefault((tenant_id, subject_id, name), []).append(host)
    return [Outside(kind, *subject, tuple(names)) for subject, names in hosts.items()]


def _checkpoints(unit: UnitOfWork, rules: Mapping[TenantId, Residency]) -> list[Outside]:
    query = (
        select(Job.tenant_id, Job.id, Job.name, CHECKPOINT_STORE)
        .where(IS_OPEN, Job.tenant_id.in_(rules), CHECKPOINT_STORE.is_not(None))
        .order_by(Job.created_at, Job.id)
    )
    return [
        Outside(OutsideKind.CHECKPOINTS, tenant_id, job_id, name, (location,))
        for tenant_id, job_id, name, location in unit.session.execute(query)
        if rules[tenant_id].checkpoint_refusal(location) is not None
    ]


def _content(unit: UnitOfWork, rules: Mapping[TenantId, Residency], store: StorePlace | None) -> list[Outside]:
    query = (
        select(Tenant.id, Tenant.name, func.coalesce(ContentUse.num_bytes, 0))
        .join(ContentUse, ContentUse.tenant_id == Tenant.id)
        .where(Tenant.id.in_(rules), ContentUse.num_bytes > 0)
        .order_by(Tenant.id)
    )
    return [
        Outside(
            OutsideKind.CONTENT,
            tenant_id,
            tenant_id,
            name,
            (f"{size_in_words(num_bytes)} in {'no store' if store is None else f'the store {store.name}'}",),
        )
        for tenant_id, name, num_bytes in unit.session.execute(query)
        if rules[tenant_id].content_refusal(store) is not None
    ]
