"""Nodes as the JSON that callers see: in a list, and one in full."""

from collections.abc import Sequence

from api.incident_views import incident_view
from api.views import cordon_view, gpu_view, time_of
from control.fleet.types import CordonRecord, NodeLatestRecord
from control.hosts.node_lists import ListedNode
from control.hosts.read import JobOnNode, NodeDetail
from muster.documents import nodes as documents


def node_view(found: ListedNode) -> documents.Node:
    """Return a node of a list. ``num_cordons``: the node's own that stand now.

    ``num_assigned_gpus`` counts GPUs until they are proved clean.
    """
    node = found.node
    return {
        "id": node.id,
        "name": node.name,
        "contact": node.contact,
        "boot_id": node.boot_id,
        "last_heartbeat_at": time_of(node.last_heartbeat_at),
        "address": node.address,
        "num_gpus": node.num_gpus,
        "num_assigned_gpus": found.num_assigned,
        "standings": dict(sorted(found.standings.items())),
        "effective_standings": dict(sorted(found.effective_standings.items())),
        "num_cordons": found.num_cordons,
        "num_cordoned_gpus": found.num_cordoned,
        "is_simulated": node.is_simulated,
        "rack": node.rack,
        "labels": node.labels,
    }


def node_detail_view(found: NodeDetail) -> documents.NodeDetail:
    """Return one node. ``path``: its place in the tree, widest first. ``agent``: None until its agent has reported."""
    node = found.node
    return {
        **node_view(found.listed),
        "version": node.version,
        "path": [{"level": level, "name": name} for level, name in found.place],
        "enrolled_at": time_of(node.created_at),
        "lease_renewed_at": time_of(node.lease_renewed_at),
        "agent": None if found.latest is None else _agent_view(found.latest),
        "driver_versions": sorted({listed.gpu.driver_version for listed in found.gpus}),
        "rdma_ports": list(node.rdma_ports),
        "network_ports": [
            {
                "name": port.name,
                "sent_bytes_per_s": port.sent_bytes_per_s,
                "received_bytes_per_s": port.received_bytes_per_s,
                "link_gbps": port.link_gbps,
                "saturation": port.saturation,
            }
            for port in found.ports
        ],
        "gpus": [
            gpu_view(listed.gpu, listed.override, is_cordoned=found.is_cordoned(listed.gpu)) for listed in found.gpus
        ],
        "cordons": [cordon_view(cordon) for cordon in found.cordons],
        "jobs": [_job_view(job) for job in found.jobs],
        "incidents": [incident_view(each) for each in found.incidents],
        "failing_saves": [
            {
                "place": each.place,
                "is_shared": each.is_shared,
                "kind": each.kind,
                "job_id": each.job_id,
                "num_failures": each.num_failures,
                "first_at": time_of(each.first_at),
                "last_at": time_of(each.last_at),
            }
            for each in found.failing_saves
        ],
        "drain": None if found.drain is None else _drain_view(found.drain, found.jobs),
    }


def _agent_view(latest: NodeLatestRecord) -> documents.NodeAgent:
    """Return the agent. ``clock_skew_s``: arrival of its newest report, less the agent's own time.

    Readings are the host's own.
    """
    readings = latest.readings or {}
    return {
        "version": readings.get("agent_version") or None,
        "driver_version": readings.get("driver_version") or None,
        "boot_id": latest.boot_id,
        "reported_at": time_of(latest.at),
        "received_at": time_of(latest.received_at),
        "clock_skew_s": latest.skew_ms / 1000,
        "cpu_percent": readings.get("cpu_percent"),
        "memory_used_mib": readings.get("memory_used_mib"),
        "spool_reports": readings.get("spool_reports"),
        "spool_bytes": readings.get("spool_bytes"),
    }


def _drain_view(cordon: CordonRecord, jobs: Sequence[JobOnNode]) -> documents.Drain:
    return {
        "cordon_id": cordon.id,
        "reason": cordon.reason,
        "owner": cordon.owner,
        "began_at": time_of(cordon.created_at),
        "until": time_of(cordon.until),
        "jobs_left": [job.job_id for job in jobs],
        "is_done": not jobs,
    }


def _job_view(job: JobOnNode) -> documents.NodeJob:
    return {
        "job_id": job.job_id,
        "job_name": job.job_name,
        "tenant_id": job.tenant_id,
        "tier": job.tier,
        "attempt_id": job.attempt_id,
        "attempt_number": job.attempt_number,
        "attempt_state": job.attempt_state,
        "stop_reason": job.stop_reason,
        "stop_deadline_at": time_of(job.stop_deadline_at),
        "state": job.state,
        "gpus": list(job.gpus),
    }
