"""The note of an event: title and text as people read them, whatever the form in which it is sent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from muster.domain.evidence.incidents import IncidentSeverity, to_do
from muster.domain.notifications.events import TEST_KIND, Fact

MOST_TITLE: Final = 200
MOST_TEXT: Final = 4_000


class NoteStatus(StrEnum):
    """Whether what a note is about lasts."""

    FIRING = "firing"
    RESOLVED = "resolved"
    NEWS = "news"
    """It happened, and does not last."""


@dataclass(frozen=True, slots=True)
class Note:
    """``key``: what it is about; an opening and its closing have the same. ``path``: its page in the console."""

    title: str
    text: str
    severity: IncidentSeverity
    status: NoteStatus
    key: str
    path: str
    at: datetime


def note_of(fact: Fact) -> Note:
    """Return the note of an event. A kind without words of its own is named by kind and subject."""
    words = _WORDS_OF.get(fact.kind, _other)
    title, lines = words(fact, fact.payload)
    text = "\n".join(line for line in lines if line)
    status = _STATUS_OF.get(fact.kind, NoteStatus.NEWS)
    return Note(
        _short(title, MOST_TITLE), _short(text, MOST_TEXT), fact.severity, status, fact.subject_id, _path(fact), fact.at
    )


def _short(text: str, most: int) -> str:
    """Return the text without control characters but line ends: it goes into headers and other people's pages."""
    clean = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def _name(fact: Fact, subject_id: str) -> str:
    return fact.names.get(subject_id, subject_id)


Lines = tuple[str, list[str]]


def _opened(fact: Fact, payload: Mapping[str, Any]) -> Lines:
    kind = str(payload.get("kind", "incident"))
    reason = str(payload.get("reason", ""))
    todo = to_do(kind, payload)
    return f"{fact.severity}: {kind.replace('_', ' ')}: {_first_of(reason)}", [reason, f"What to do: {todo}"]


def _closed(fact: Fact, payload: Mapping[str, Any]) -> Lines:
    kind, subject = str(payload.get("kind", "incident")), str(payload.get("subject_id", ""))
    return f"closed: {kind.replace('_', ' ')}: {_name(fact, subject)}", [str(payload.get("reason") or "")]


def _first_of(text: str) -> str:
    return text.partition("\n")[0]


def _job(verb: str) -> Callable[[Fact, Mapping[str, Any]], Lines]:
    def words(fact: Fact, payload: Mapping[str, Any]) -> Lines:
        reason = str(payload.get("reason") or "")
        whose = f"Job {fact.subject_id} of the tenant {_name(fact, fact.tenant_id or '')}."
        return f"job {_name(fact, fact.subject_id)} {verb}", [reason, whose]

    return words


def _tested(fact: Fact, payload: Mapping[str, Any]) -> Lines:
    return f"test of the route {payload.get('name', fact.subject_id)}", [
        f"{payload.get('by', 'A person')} asked for it. Nothing happened."
    ]


def _budget(fact: Fact, payload: Mapping[str, Any]) -> Lines:
    spent, amount, currency = payload.get("spent"), payload.get("amount"), payload.get("currency")
    title = f"{payload.get('share')} % of the budget of {_name(fact, fact.subject_id)} is spent"
    return title, [f"{spent} of {amount} {currency}.", f"At the end of the budget: {payload.get('action')}."]


def _other(fact: Fact, payload: Mapping[str, Any]) -> Lines:
    return f"{fact.kind}: {_name(fact, fact.subject_id)}", [str(payload.get("reason") or "")]


_WORDS_OF: Final[Mapping[str, Callable[[Fact, Mapping[str, Any]], Lines]]] = {
    "incident.opened": _opened,
    "incident.extended": _opened,
    "incident.escalated": _opened,
    "incident.closed": _closed,
    "job.succeeded": _job("succeeded"),
    "job.failed": _job("failed"),
    "job.held": _job("is on hold"),
    "job.cancelled": _job("was cancelled"),
    "reclaim.notified": _job("has to give up its GPUs"),
    "tenant.budget_notice": _budget,
    TEST_KIND: _tested,
}
_STATUS_OF: Final[Mapping[str, NoteStatus]] = {
    "incident.opened": NoteStatus.FIRING,
    "incident.extended": NoteStatus.FIRING,
    "incident.escalated": NoteStatus.FIRING,
    "incident.closed": NoteStatus.RESOLVED,
}
_PAGES: Final[Mapping[str, str]] = {"job": "jobs", "gpu": "gpus", "node": "nodes"}


def _path(fact: Fact) -> str:
    if fact.subject_type == "incident":
        return "/console/incidents"
    page = _PAGES.get(fact.subject_type)
    return "/console" if page is None else f"/console/{page}/{fact.subject_id}"
