"""What a route subscribes to: kinds of events, and incidents by their least severity."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from muster.domain.evidence.incidents import IncidentSeverity, severity_of

PATTERN: Final = r"^[a-z][a-z_]*\.(\*|[a-z][a-z_]*)$"
"""A kind of event, such as ``job.failed``, or all of a noun, such as ``job.*``."""
_PATTERN: Final = re.compile(PATTERN)
USUAL_OF_TENANTS: Final = ("job.succeeded", "job.failed", "job.held", "reclaim.notified", "tenant.budget_notice")
"""What a tenant's route takes unless it names kinds itself."""
USUAL_OF_OPERATORS: Final = ("incident.opened", "incident.escalated", "incident.closed")
CLOSED: Final = "incident.closed"
TEST_KIND: Final = "route.tested"
"""The kind of a test's event, which only the tested route takes."""


@dataclass(frozen=True, slots=True)
class Fact:
    """An event as a notification states it. ``names``: id → name of jobs, tenants and nodes that it names."""

    id: str
    kind: str
    at: datetime
    subject_type: str
    subject_id: str
    tenant_id: str | None
    payload: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def severity(self) -> IncidentSeverity:
        """How urgent it is: of an incident its severity; of any other event INFO."""
        if self.kind.startswith("incident."):
            return severity_of(str(self.payload.get("kind")), self.payload)
        return IncidentSeverity.INFO


@dataclass(frozen=True, slots=True)
class Subscription:
    """``kinds``: patterns as of ``PATTERN``. ``least``: of incidents, each that is at least so severe."""

    kinds: tuple[str, ...]
    least: IncidentSeverity = IncidentSeverity.INFO

    def takes(self, fact: Fact, *, has_sent: bool = False) -> bool:
        """Return whether the route sends this event.

        ``has_sent``: it has sent an earlier one about the same incident, whose end it sends whatever its severity.
        """
        if not any(_matches(kind, fact.kind) for kind in self.kinds):
            return False
        if not fact.kind.startswith("incident.") or fact.severity.rank >= self.least.rank:
            return True
        return has_sent and fact.kind == CLOSED


def _matches(pattern: str, kind: str) -> bool:
    return kind.startswith(pattern[:-1]) if pattern.endswith(".*") else kind == pattern


def is_pattern(text: str) -> bool:
    return _PATTERN.fullmatch(text) is not None
