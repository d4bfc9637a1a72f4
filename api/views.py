"""Rows as the JSON that callers see. Times are RFC 3339 in UTC; units are in the names."""

from datetime import datetime
from typing import cast, overload

from control.core.events import EventRecord
from control.core.versions import VersionRecord
from control.fleet.types import CordonRecord, GpuRecord
from control.health.burn_ins.read import BurnInRecord
from control.reclaim.read import ReclaimView
from control.secrets.tenant_secrets import SecretRecord
from control.tenants.quotas import QuotaFound
from control.tenants.read import KeyRecord, TenantRecord
from control.tenants.residency import ResidencyFound
from muster import documents
from muster.domain.gpu.effective_standing import effective_standing
from muster.domain.residency import Residency, read_residency
from muster.domain.states import Standing


@overload
def time_of(moment: datetime) -> str: ...
@overload
def time_of(moment: datetime | None) -> str | None: ...
def time_of(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def version_view(row: VersionRecord) -> documents.PolicyVersion:
    """Return the version of a document without the document."""
    return {
        "version": row.version,
        "is_active": row.is_active,
        "created_at": time_of(row.created_at),
        "created_by": row.created_by,
        "reason": row.reason,
    }


def reclaim_view(view: ReclaimView) -> documents.Reclaim:
    """Return the reclaim. The other tenant's job has only its tier here; data of the choice is for operators."""
    row = view.reclaim
    return {
        "id": row.id,
        "state": row.state,
        "reason": row.reason,
        "num_gpus": row.num_gpus,
        "num_kept_gpus": len(row.keeps or ()),
        "victim_tier": row.victim_tier,
        "victim_job_id": row.victim_job_id if view.shows_victim else None,
        "victim_job_name": view.victim_job_name if view.shows_victim else None,
        "victim_attempt_id": row.victim_attempt_id if view.shows_victim else None,
        "beneficiary_tier": row.beneficiary_tier,
        "beneficiary_job_id": row.beneficiary_job_id if view.shows_beneficiary else None,
        "beneficiary_job_name": view.beneficiary_job_name if view.shows_beneficiary else None,
        "notice_s": row.notice_s,
        "notified_at": time_of(row.notified_at),
        "deadline_at": time_of(row.deadline_at),
        "delivered_at": time_of(row.delivered_at),
        "settled_at": time_of(row.settled_at),
        "settled_why": row.settled_why if view.shows_victim else None,
        "outcome": row.outcome if view.shows_victim else None,
        "cost_gpu_s": row.cost_gpu_s if view.shows_victim else None,
        "lost_gpu_s": row.lost_gpu_s if view.shows_victim else None,
        "runner_up": row.runner_up if view.shows_choice else None,
        "policy_version": row.policy_version,
    }


def quota_view(found: QuotaFound) -> documents.Quota:
    row = found.row
    return {
        "tenant_id": row.tenant_id,
        "tier": row.tier,
        "guaranteed_gpus": row.guaranteed_gpus,
        "borrowable_gpus": row.borrowable_gpus,
        "ceiling_gpus": row.ceiling_gpus,
        "assigned_gpus": found.assigned_gpus,
        "lent_gpus": found.lent_gpus,
        "updated_at": time_of(row.updated_at),
    }


def event_view(event: EventRecord) -> documents.Event:
    """Return an event that has its position; no other is read."""
    return {
        "id": event.id,
        "position": cast("int", event.position),
        "at": time_of(event.at),
        "kind": event.kind,
        "subject_type": event.subject_type,
        "subject_id": event.subject_id,
        "tenant_id": event.tenant_id,
        "payload": event.payload,
        "caused_by": event.caused_by,
    }


def stretch_of(events: list[documents.Event], after: int) -> documents.EventStretch:
    """Return ``events`` after ``after``, and where to continue."""
    return {"items": events, "next_after": events[-1]["position"] if events else after}


def key_view(key: KeyRecord) -> documents.Key:
    return {
        "id": key.id,
        "name": key.name,
        "prefix": f"mst_{key.prefix}",
        "role": key.role,
        "tenant_id": key.tenant_id,
        "node_id": key.node_id,
        "created_at": time_of(key.created_at),
        "expires_at": time_of(key.expires_at),
        "revoked_at": time_of(key.revoked_at),
        "last_used_at": time_of(key.last_used_at),
        "version": key.version,
    }


def secret_view(secret: SecretRecord) -> documents.Secret:
    return {
        "id": secret.id,
        "tenant_id": secret.tenant_id,
        "name": secret.name,
        "jobs": secret.jobs,
        "version": secret.version,
        "created_at": time_of(secret.created_at),
        "created_by": secret.created_by,
        "rotated_at": time_of(secret.rotated_at),
    }


def tenant_view(tenant: TenantRecord) -> documents.Tenant:
    return {
        "id": tenant.id,
        "name": tenant.name,
        "created_at": time_of(tenant.created_at),
        "parent_id": tenant.parent_id,
        "weight": tenant.weight,
        "residency": None if tenant.residency is None else _residency_view(read_residency(tenant.residency)),
    }


def residency_view(found: ResidencyFound) -> documents.TenantResidency:
    return {
        **tenant_view(found.tenant),
        "holds": _residency_view(found.holds),
        "num_hosts": found.num_hosts,
        "num_fleet_hosts": found.num_fleet_hosts,
        "outside": [
            {
                "kind": one.kind,
                "tenant_id": one.tenant_id,
                "subject_id": one.subject_id,
                "name": one.name,
                "places": list(one.places),
                "to_do": one.to_do,
            }
            for one in found.outside
        ],
    }


def _residency_view(rule: Residency) -> documents.Residency:
    stored = rule.document()
    return {"sites": stored["sites"], "stores": stored["stores"]}


def cordon_view(cordon: CordonRecord) -> documents.Cordon:
    return {
        "id": cordon.id,
        "node_id": cordon.node_id,
        "gpu_uuid": cordon.gpu_uuid,
        "reason_code": cordon.reason_code,
        "reason": cordon.reason,
        "owner": cordon.owner,
        "starts_at": time_of(cordon.starts_at),
        "evacuate_at": time_of(cordon.evacuate_at),
        "until": time_of(cordon.until),
        "created_at": time_of(cordon.created_at),
        "released_at": time_of(cordon.released_at),
        "released_by": cordon.released_by,
    }


def burn_in_view(row: BurnInRecord) -> documents.BurnIn:
    """Return all but the figures, of which there are many."""
    figures = row.figures or {}
    return {
        "id": row.id,
        "gpu_uuid": row.gpu_uuid,
        "node_id": row.node_id,
        "state": row.state,
        "outcome": row.outcome,
        "reasons": row.reasons,
        "open_bands": row.open_bands,
        "num_peers": row.num_peers,
        "model": figures.get("model"),
        "driver": figures.get("driver"),
        "library": figures.get("library"),
        "is_simulated": figures.get("is_simulated"),
        "rates": figures.get("rates"),
        "covers": figures.get("covers"),
        "took_s": figures.get("took_s"),
        "reason": row.reason,
        "ordered_by": row.ordered_by,
        "ordered_at": time_of(row.ordered_at),
        "tries": row.tries,
        "began_at": time_of(row.began_at),
        "ended_at": time_of(row.ended_at),
        "last_fault": row.last_fault,
        "judged_at": time_of(row.judged_at),
        "policy_version": row.policy_version,
    }


def gpu_view(gpu: GpuRecord, override: Standing | None, *, is_cordoned: bool) -> documents.Gpu:
    return {
        "uuid": gpu.uuid,
        "node_id": gpu.node_id,
        "slot_index": gpu.slot_index,
        "serial": gpu.serial,
        "model": gpu.model,
        "memory_bytes": gpu.memory_bytes,
        "compute_capability": gpu.compute_capability,
        "driver_version": gpu.driver_version,
        "standing": gpu.standing,
        "override": override,
        "effective_standing": effective_standing(gpu.standing, override),
        "is_cordoned": is_cordoned,
        "score": gpu.score,
        "is_mig_enabled": gpu.is_mig_enabled,
        "is_simulated": gpu.is_simulated,
        "cohort_key": gpu.cohort_key,
        "attributes": gpu.attributes,
    }
