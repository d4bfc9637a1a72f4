"""The drift report: the GPUs that differ from most GPUs of their model, in driver, firmware, links or network."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.core.unit_of_work import UnitOfWork
from control.fleet.node_names import names_of
from control.policy.policies import active_policy
from health.cohort.cohorts import Attribute
from health.cohort.drift import Alike, Drift, drifts_of
from health.cohort.reported_attributes import attributes_reported
from health.detectors.readings import PORT_ACTIVE
from muster.db.queries.drift import AlikeRow, alike_rows, host_texts, ports
from muster.domain.gpu.cohort_attributes import SET_UP
from muster.domain.ids import NodeId
from muster.domain.principals import Permission


@dataclass(frozen=True, slots=True)
class DriftReport:
    """Drifts with ``node_names``, the names of all nodes in them."""

    drifts: Sequence[Drift]
    node_names: Mapping[NodeId, str]


def drift_report(unit: UnitOfWork) -> DriftReport:
    """Return drifts by model and attribute, without retired GPUs: the ones that keep most GPUs out of gangs first."""
    unit.principal.require(Permission.GPU_READ)
    networks = network_of_nodes(ports(unit.session, unit.now))
    hosts = host_texts(unit.session, unit.now)
    groups = [
        _alike(row, networks.get(row.node_id), hosts.get(row.node_id, "")) for row in alike_rows(unit.session, unit.now)
    ]
    policy = active_policy(unit.session)
    drifts = drifts_of(groups, policy.health.cohort, {name: policy.homogeneity(name) for name in policy.tiers})
    named = {node for drift in drifts for other in drift.others for node in other.nodes}
    return DriftReport(drifts, names_of(unit, named))


def network_of_nodes(found: Iterable[tuple[NodeId, Mapping[str, Any]]]) -> dict[NodeId, str]:
    """Return the class of each node's network, such as ``8 × 400 Gb/s InfiniBand``, from its ports that have a rate."""
    counted: dict[NodeId, Counter[str]] = {}
    for node_id, values in found:
        rate = values.get("rate_gbps")
        if rate:
            kind = "Ethernet" if values.get("is_ethernet") else "InfiniBand"
            counted.setdefault(node_id, Counter())[f"{rate:g} Gb/s {kind}"] += 1
    return {
        node_id: ", ".join(f"{count} × {name}" for name, count in sorted(classes.items()))
        for node_id, classes in counted.items()
    }


def nic_rates_of_nodes(found: Iterable[tuple[NodeId, Mapping[str, Any]]]) -> dict[NodeId, str]:
    """Return the best rate of each node's active ports, such as ``400 Gb/s InfiniBand``.

    A port that is down may have a rate too, which is not that of its link. A node without active ports has no entry.
    """
    best: dict[NodeId, tuple[float, str]] = {}
    for node_id, values in found:
        rate = values.get("rate_gbps")
        if rate and values.get("state", PORT_ACTIVE) >= PORT_ACTIVE:
            one = (rate, f"{rate:g} Gb/s {'Ethernet' if values.get('is_ethernet') else 'InfiniBand'}")
            best[node_id] = max(best.get(node_id, one), one)
    return {node_id: text for node_id, (_, text) in best.items()}


def _alike(row: AlikeRow, network: str | None, host_text: str) -> Alike:
    attributes: dict[str, Attribute] = {
        "memory_bytes": row.memory_bytes,
        "compute_capability": row.compute_capability,
        "driver_version": row.driver_version,
    }
    told = attributes_reported(row.state, row.text, network, host_text)
    attributes |= {name: told.get(name) for name in SET_UP}
    return Alike(row.model, row.node_id, row.num_gpus, attributes)
