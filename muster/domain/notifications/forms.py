"""The forms in which receivers take a note: Standard Webhooks, Slack, PagerDuty, Alertmanager and mail."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

from muster.domain.evidence.incidents import IncidentSeverity
from muster.domain.notifications.events import Fact
from muster.domain.notifications.notes import Note, NoteStatus

_PAGERDUTY_SEVERITY: Final[Mapping[IncidentSeverity, str]] = {
    IncidentSeverity.PAGE: "critical",
    IncidentSeverity.TICKET: "warning",
    IncidentSeverity.INFO: "info",
}
_SLACK_TEXT: Final = 3_000
"""What a section of Slack takes, in characters."""
MOST_PAYLOAD_BYTES: Final = 64 << 10
_LASTS: Final = timedelta(days=30)
"""An alert that is sent once stays in an Alertmanager for so long, unless its end is sent."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What one notification says. ``id``: the same in each try. ``url``: of its page; empty: no address is known."""

    id: str
    fact: Fact
    note: Note
    url: str


def webhook_body(letter: Letter) -> bytes:
    """Return ``type``, ``timestamp`` and ``data`` (Standard Webhooks), with the event and its note in ``data``."""
    fact, note = letter.fact, letter.note
    data = {
        "event_id": fact.id,
        "subject_type": fact.subject_type,
        "subject_id": fact.subject_id,
        "tenant_id": fact.tenant_id,
        "payload": _bounded(fact.payload),
        "title": note.title,
        "text": note.text,
        "severity": note.severity.value,
        "status": note.status.value,
        "url": letter.url,
    }
    return _json({"type": fact.kind, "timestamp": fact.at.isoformat(), "data": data})


def slack_body(letter: Letter) -> bytes:
    """Return the body of an incoming webhook of Slack. Names in it form no markup and mention no person."""
    note = letter.note
    link = f"\n<{letter.url}|Open in Muster>" if letter.url else ""
    title = f"*{_slack(note.title)}*\n"
    text = note.text
    while text and len(title) + len(_slack(text)) + len(link) > _SLACK_TEXT:
        text = text[: len(text) * 9 // 10]
    section = {"type": "section", "text": {"type": "mrkdwn", "text": f"{title}{_slack(text)}{link}"}}
    return _json({"text": _slack(note.title), "blocks": [section]})


def _bounded(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload, or that it is left out for its size."""
    found = dict(payload)
    return found if len(_json(found)) <= MOST_PAYLOAD_BYTES else {"left_out": "the event's own page has it"}


def _slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def pagerduty_body(letter: Letter, routing_key: str) -> bytes:
    """Return an event of PagerDuty's Events API v2; a closing resolves the alert that its opening triggered."""
    fact, note = letter.fact, letter.note
    payload = {
        "summary": note.title,
        "source": fact.subject_id,
        "severity": _PAGERDUTY_SEVERITY[note.severity],
        "timestamp": note.at.isoformat(),
        "component": fact.subject_type,
        "class": fact.kind,
        "custom_details": {"text": note.text, "notification_id": letter.id},
    }
    document: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if note.status is NoteStatus.RESOLVED else "trigger",
        # What does not last is an alert of its own: it would count as a repetition of the one before.
        "dedup_key": fact.id if note.status is NoteStatus.NEWS else note.key,
        "client": "Muster",
        "payload": payload,
    }
    if letter.url:
        document |= {"client_url": letter.url, "links": [{"href": letter.url, "text": "Open in Muster"}]}
    return _json(document)


def alertmanager_body(letter: Letter) -> bytes:
    """Return the body of Alertmanager's ``POST /api/v2/alerts``.

    An alert is what has the same labels, so they have nothing that changes between an opening and its closing. What
    does not last ends after the time that the Alertmanager is set to (``resolve_timeout``).
    """
    fact, note = letter.fact, letter.note
    labels = {
        "alertname": str(fact.payload.get("kind") or fact.kind),
        "subject": str(fact.payload.get("subject_id") or fact.subject_id),
        "muster_id": fact.id if note.status is NoteStatus.NEWS else note.key,
    }
    if fact.tenant_id is not None:
        labels["tenant_id"] = fact.tenant_id
    alert = {
        "labels": labels,
        "annotations": {"summary": note.title, "description": note.text, "severity": note.severity.value},
        "startsAt": note.at.isoformat(),
        "generatorURL": letter.url,
    }
    if note.status is not NoteStatus.NEWS:
        ends_at = note.at if note.status is NoteStatus.RESOLVED else note.at + _LASTS
        alert["endsAt"] = ends_at.isoformat()
    return _json([alert])


def mail(letter: Letter, sender: str, receivers: Sequence[str], route: str) -> EmailMessage:
    """Return the mail. Its Message-ID is the notification's id, so a second try is the same mail."""
    note, domain = letter.note, sender.rpartition("@")[2].rstrip(">") or "muster"
    message = EmailMessage()
    message["From"], message["To"] = sender, ", ".join(receivers)
    message["Subject"] = f"[Muster] {note.title}".replace("\n", " ")
    message["Date"] = format_datetime(note.at)
    message["Message-ID"] = f"<{letter.id}@{domain}>"
    message["References"] = f"<{note.key}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    link = f"\n{letter.url}\n" if letter.url else ""
    message.set_content(f"{note.text}\n{link}\n-- \nSent by the route {route} of Muster.\n")
    return message


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), default=str).encode()
