"""Route of the control plane's own figures: contact with hosts, and the lengths of its queues."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request

from api.dependencies import dependencies_of
from api.gpu_views import breaker_view
from api.permissions import requires
from api.reading import reading
from api.views import time_of
from control.system import system_figures
from control.system.read import Contacts, Waiting
from control.system.system_figures import SystemFigures
from muster.documents import system_figures as documents
from muster.domain.principals import Permission, Principal

router = APIRouter(tags=["system"])


@router.get("/system")
def show_system(
    request: Request, principal: Annotated[Principal, requires(Permission.METRICS_READ)]
) -> documents.System:
    """Return the figures: heartbeats, ingest, scheduler, outbox, sequencer, sealer, judge, breakers, versions."""
    return _view(reading(dependencies_of(request).units, principal, system_figures.READ, system_figures.figures))


def _view(found: SystemFigures) -> documents.System:
    ingest = found.ingest
    return {
        "at": time_of(found.now),
        "version": found.version,
        "database_version": found.database_version,
        "schema": {
            "revision": found.schema_revision,
            "needed": found.schema_needed,
            "is_current": found.schema_revision == found.schema_needed,
        },
        "api_alive_at": time_of(found.api_alive_at),
        "accepts_heartbeats_since": time_of(found.accepts_heartbeats_since),
        "heartbeats": _heartbeats_view(found.contacts),
        "ingest": {
            "reports_last_minute": ingest.num_reports,
            "gpus_last_minute": ingest.num_gpus,
            "newest_age_s": _age_s(ingest.newest_at, found.now),
        },
        "scheduler": {"is_active": found.is_scheduler_active, "queued": _waiting_view(found.queue, found.now)},
        "outbox": {**_waiting_view(found.outbox, found.now), "num_dead": found.num_dead_messages},
        "sequencer": {**_waiting_view(found.events, found.now), "position": found.events_position},
        "sealer": {**_waiting_view(found.audit, found.now), "position": found.audit_position},
        "judge": {**_waiting_view(found.signals, found.now), "num_set_aside": found.num_signals_set_aside},
        "loops": [
            {"name": each.loop, "started_by": each.started_by, "age_s": each.age_s, "is_stalled": each.is_stalled}
            for each in found.loops
        ],
        "breakers": [breaker_view(breaker) for breaker in found.breakers],
    }


def _heartbeats_view(found: Contacts) -> documents.Heartbeats:
    return {
        "num_live": found.live,
        "num_silent": found.silent,
        "num_lost": found.lost,
        "max_age_s": found.oldest_s,
        "median_age_s": found.median_s,
        "p99_age_s": found.p99_s,
    }


def _waiting_view(found: Waiting, now: datetime) -> documents.Waiting:
    return {"num": found.num, "oldest_age_s": _age_s(found.oldest_at, now)}


def _age_s(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else max(0.0, (now - moment).total_seconds())
