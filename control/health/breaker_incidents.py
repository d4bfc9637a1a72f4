"""Incidents of the circuit breaker: one a storm, which grows as scopes open and as more GPUs wait for a person."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from control.core.unit_of_work import UnitOfWork
from control.incidents import incidents
from health.cohort.cohorts import attributes_of
from health.standing.breaker import BreakerIncident, BreakerState, FleetCounts
from muster.db.models import Incident
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.ids import GpuUuid
from muster.domain.policy.health import HealthPolicy

BREAKER: Final = "quarantine"
COHORT: Final = "cohort:"
"""Beginning of the name of a scope that is a cohort."""


def report_waiting(
    unit: UnitOfWork,
    state: BreakerState,
    opened: BreakerIncident | None,
    waiting: Sequence[GpuUuid],
    counts: FleetCounts,
    policy: HealthPolicy,
) -> None:
    """Report the scopes that ``opened`` and the GPUs that wait. The caller holds the breaker's row.

    A scope that opens within the breaker's window after an open incident belongs to the same storm. A GPU that waits
    for a scope that was open before belongs to the newest incident with such a scope.
    """
    if opened is None and not waiting:
        return
    known = incidents.open_about(unit, IncidentKind.BREAKER_OPEN, [BREAKER])
    if opened is None:
        places = (counts.places[uuid] for uuid in waiting if uuid in counts.places)
        scopes = {scope for place in places for scope in place.scopes() if scope in state.open_since_ms}
        about = [each for each in known if scopes & set(each.payload["scopes"])]
        if about:
            _enter(unit, about[-1], {}, waiting)
        return
    window = timedelta(seconds=policy.breaker.window_s)
    same = [each for each in known if each.opened_at > unit.now - window]
    if same:
        _enter(unit, same[-1], opened.caps, opened.gpu_uuids)
        return
    summary, payload = _summary(opened.caps, opened.gpu_uuids), _payload(opened.caps, opened.gpu_uuids)
    incidents.open_incident(unit, IncidentKind.BREAKER_OPEN, "breaker", BREAKER, summary, payload)


def _enter(unit: UnitOfWork, incident: Incident, caps: Mapping[str, int], uuids: Sequence[GpuUuid]) -> None:
    """Enter what the incident does not have yet. Its event names that alone: a storm may have thousands of GPUs."""
    before = incident.payload
    known = set(before["gpus"])
    new_caps = {scope: cap for scope, cap in caps.items() if scope not in before["scopes"]}
    new_uuids = list(dict.fromkeys(uuid for uuid in uuids if uuid not in known))
    if not new_caps and not new_uuids:
        return
    scopes, gpus = {**before["scopes"], **new_caps}, [*before["gpus"], *new_uuids]
    added = {**_payload(new_caps, new_uuids), "num_gpus": len(gpus)}
    incidents.extend_incident(unit, incident, _summary(scopes, gpus), _payload(scopes, gpus), added=added)


def _summary(scopes: Mapping[str, int], uuids: Sequence[GpuUuid]) -> str:
    words = ", ".join(f"{_short(scope)} (cap {cap})" for scope, cap in sorted(scopes.items()))
    return f"the circuit breaker opened: {words}; {len(uuids)} GPUs wait for a person"


def _short(scope: str) -> str:
    """Return a scope's name for a sentence: a cohort's by its model, since its whole key is longer than a line."""
    model = attributes_of(scope.removeprefix(COHORT)).get("model") if scope.startswith(COHORT) else None
    return scope if model is None else f"{COHORT}{model}"


def _payload(scopes: Mapping[str, int], uuids: Sequence[GpuUuid]) -> dict[str, Any]:
    return {"scopes": dict(scopes), "gpus": list(uuids)}
