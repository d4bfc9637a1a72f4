"""Marks on charts over time: faults, and changes of what the fleet runs under."""

from typing import Any, Final

from console.ranges import Stretch
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

    Quarantines are marked in up to eight days: events of a longer time are too many to look through for a page.
    """
    may, found = unit.principal.may, list[dict[str, Any]]()
    if may(Permission.INCIDENT_READ):
        for incident in list_incidents(unit, IncidentFilter(span=shown.span), MOST):
            found.append(_fault(to_ms(incident.opened_at), incident.summary))
        quarantined = EventFilter(kind="gpu.quarantined", span=shown.span)
        for event in list_events(unit, quarantined, MOST) if shown.is_hourly else ():
            found.append(_fault(to_ms(event.at), f"{event.subject_id} was quarantined"))
    if may(Permission.POLICY_READ):
        for words, versions in (("policy", policies.list_versions), ("rate cards", rates.list_versions)):
            for each in versions(unit, MOST, span=shown.span):
                name = f"version {each.version} of the {words} in force"
                found.append({"at": to_ms(each.created_at), "words": name, "kind": "change", "label": "▲"})
    return sorted(found, key=lambda mark: int(mark["at"]))


def _fault(at_ms: int, words: str) -> dict[str, Any]:
    return {"at": at_ms, "words": words, "kind": "bad", "label": "✕"}
