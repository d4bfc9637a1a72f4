"""Attributes that agents report after enrolment (firmware, CUDA, links, network), stored in the GPUs' rows.

Cohorts follow them.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Final

from sqlalchemy import select

from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.fleet.drift import network_of_nodes, nic_rates_of_nodes
from control.policy.cohorts import hold_policy, lock_all, rekey
from control.policy.policies import active_policy
from health.cohort.cohorts import attributes_of
from health.cohort.reported_attributes import attributes_reported
from muster.db.models import Gpu, PolicyVersion
from muster.db.queries.drift import host_texts, ports, reported_rows
from muster.domain.ids import GpuUuid
from muster.domain.principals import Permission, Principal

REFRESH: Final = declare_action("gpu.refresh_attributes")
BATCH: Final = 1000


def refresh_attributes_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Store each GPU's last reported attributes; one that is reported no more stays as it was.

    A running gang keeps its GPUs, whatever their cohort is now. Return how many GPUs changed, ``BATCH`` where there may
    be more.
    """

    def once() -> int:
        with units.begin(principal, REFRESH, quiet=True) as unit:
            unit.principal.require(Permission.SYSTEM_RUN)
            follow_policy(unit)
            changes = _changes(unit)
            if changes:
                _write(unit, changes)
            return len(changes)

    return retrying(once)


def follow_policy(unit: UnitOfWork) -> int:
    """Write the keys of all GPUs again if some have other attributes than the active policy. Return how many changed.

    A policy that is activated does so itself. Where none is stored, the built-in one counts, and another release may
    have another list. GPUs that could be mixed before may be in several cohorts then, so the event says how many.
    """
    unit.principal.require(Permission.SYSTEM_RUN)
    before = set(unit.session.scalars(select(Gpu.cohort_key).distinct()))
    wanted = set(active_policy(unit.session).health.cohort.attributes)
    if all(set(attributes_of(key)) == wanted for key in before):
        return 0
    hold_policy(unit.session)
    policy = active_policy(unit.session).health.cohort
    num_gpus = rekey(unit.session, policy)
    after = set(unit.session.scalars(select(Gpu.cohort_key).distinct()))
    detail = {
        "attributes": list(policy.attributes),
        "num_gpus": num_gpus,
        "num_cohorts_before": len(before),
        "num_cohorts": len(after),
    }
    version = unit.session.scalar(select(PolicyVersion.version).where(PolicyVersion.is_active))
    subject = "built-in" if version is None else str(version)
    unit.emit("policy.cohorts_rekeyed", "policy", subject, payload=detail)
    reason = "keys have other attributes than the active policy"
    unit.audit("policy.rekey_cohorts", "policy", subject, reason=reason, detail=detail)
    unit.wake(SCHEDULER_CHANNEL)
    return num_gpus


def _changes(unit: UnitOfWork) -> dict[GpuUuid, Mapping[str, str]]:
    """Return GPU → reported attributes that differ from its row."""
    found_ports = list(ports(unit.session, unit.now))
    networks, rates = network_of_nodes(found_ports), nic_rates_of_nodes(found_ports)
    hosts = host_texts(unit.session, unit.now)
    found = (
        (row.uuid, {name: value for name, value in told.items() if row.attributes.get(name) != value})
        for row in reported_rows(unit.session, unit.now)
        for told in (
            attributes_reported(
                row.state, row.text, networks.get(row.node_id), hosts.get(row.node_id, ""), rates.get(row.node_id)
            ),
        )
    )
    return dict(islice(((uuid, news) for uuid, news in found if news), BATCH))


def _write(unit: UnitOfWork, changes: Mapping[GpuUuid, Mapping[str, str]]) -> None:
    session = unit.session
    hold_policy(session)
    policy = active_policy(session).health.cohort
    concerns_cohorts = any(name in policy.attributes for news in changes.values() for name in news)
    if concerns_cohorts:  # GPUs without a report may be presumed otherwise now
        lock_all(session)
    query = select(Gpu).where(Gpu.uuid.in_(changes)).order_by(Gpu.uuid).with_for_update(key_share=True)
    for gpu in session.scalars(query.execution_options(populate_existing=True)):
        news = changes[gpu.uuid]
        before = {name: gpu.attributes.get(name) for name in news}
        gpu.attributes = {**gpu.attributes, **news}
        unit.emit("gpu.attributes_changed", "gpu", gpu.uuid, payload={"before": before, "after": dict(news)})
    session.flush()
    if concerns_cohorts:
        rekey(session, policy)
