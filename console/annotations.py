"""Marks on charts over time: faults, and changes of what the fleet runs under."""

from collections import Counter
from typing import Any, Final

from console.ranges import Stretch
from console.words import plural
from control.core.events import EventFilter, list_events
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.incidents.read import IncidentFilter, list_incidents
from control.ledger import rates
from control.policy import read as policies
from muster.domain.principals import Permission
from muster.domain.times import to_ms

MOST: Final = Part(40)


def marks_in(unit: UnitOfWork, shown: Stretch) -> list[dict[str, Any]]:
    """Return the marks that the reader may see, the oldest first: the newest forty of each kind.

    Quarantines and upgrades of drivers are marked in up to eight days: events of a longer time are too many to look
    through for a page. The GPUs that one unit of work found with a new driver are one mark.
    """
    may, found = unit.principal.may, list[dict[str, Any]]()
    if may(Permission.INCIDENT_READ):
        for incident in list_incidents(unit, IncidentFilter(span=shown.span), MOST):
            found.append(_fault(to_ms(incident.opened_at), incident.summary))
        quarantined = EventFilter(kind="gpu.quarantined", span=shown.span)
        for event in list_events(unit, quarantined, MOST) if shown.is_hourly else ():
            found.append(_fault(to_ms(event.at), f"{event.subject_id} was quarantined"))
    if may(Permission.GPU_READ) and shown.is_hourly:
        upgraded = list_events(unit, EventFilter(kind="gpu.driver_changed", span=shown.span), MOST)
        drivers = Counter((event.at, str(event.payload["driver_version"])) for event in upgraded)
        for (at, driver), num_gpus in drivers.items():
            least = "at least " if len(upgraded) == MOST.limit else ""
            found.append(_change(to_ms(at), f"driver {driver} on {least}{plural(num_gpus, 'GPU')}"))
    if may(Permission.POLICY_READ):
        for words, versions in (("policy", policies.list_versions), ("rate cards", rates.list_versions)):
            for each in versions(unit, MOST, span=shown.span):
                found.append(_change(to_ms(each.created_at), f"version {each.version} of the {words} in force"))
    return sorted(found, key=lambda mark: int(mark["at"]))


def _fault(at_ms: int, words: str) -> dict[str, Any]:
    return {"at": at_ms, "words": words, "kind": "bad", "label": "✕"}


def _change(at_ms: int, words: str) -> dict[str, Any]:
    return {"at": at_ms, "words": words, "kind": "change", "label": "▲"}
