"""Sentences about what a tried change does besides jobs: a cordon, a quota, a key. Events are never named to a person.

A kind of event without a sentence of its own is named by its subject alone, so that a later kind needs no change here;
``tests/control/system/effects/test_sentences.py`` finds kinds of the changes that persons make and that lack one.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.system.effects.follow_ons import Event
from muster.db.models import Job, Node, Tenant
from muster.domain.ids import JobId
from muster.domain.residency import read_residency
from muster.domain.states import JobState, Standing

Payload = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Named:
    """Events of a change, with the names of their nodes, tenants and jobs by id."""

    events: Sequence[Event]
    names: Mapping[str, str]


def named_in(session: Session, events: Sequence[Event]) -> Named:
    ids = {event["subject_id"] for event in events}
    ids |= {job_id for event in events if (job_id := event["payload"].get("job_id"))}
    names: dict[str, str] = {}
    for table in (Job, Node, Tenant):
        names.update(
            (row.id, row.name) for row in session.execute(select(table.id, table.name).where(table.id.in_(ids)))
        )
    return Named(events, names)


def sentences_of(named: Named, reported: AbstractSet[JobId]) -> tuple[str, ...]:
    """Return a sentence for each event, in their order, but none on attempts or on what was ``reported`` of jobs."""
    found = [
        _sentence(event, named.names)
        for event in named.events
        if event["subject_type"] != "attempt"
        and not (event["subject_id"] in reported and event["kind"] in _STATED_OF_JOBS)
    ]
    return tuple(dict.fromkeys(found))


def _sentence(event: Event, names: Mapping[str, str]) -> str:
    subject = names.get(event["subject_id"], event["subject_id"])
    kind, payload = event["kind"], event["payload"]
    words = SENTENCES.get(kind)
    if words is None:
        return f"{event['subject_type'].replace('_', ' ')} {subject} changes"
    return words(subject, payload) if callable(words) else words.format(subject=subject, **_fields_of(payload, names))


def _fields_of(payload: Payload, names: Mapping[str, str]) -> dict[str, Any]:
    fields = {name: "–" if value is None else value for name, value in payload.items()}
    if "expires_at" in payload:
        fields["expires_at"] = _second(payload["expires_at"])
    return {**fields, "job": names.get(str(payload.get("job_id")), payload.get("job_id"))}


def _second(moment: str) -> str:
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _until(payload: Payload) -> str:
    return f" until {_second(payload['until'])}" if payload.get("until") else ""


def _cordoned(subject: str, payload: Payload) -> str:
    starts = f" from {_second(payload['starts_at'])}" if payload.get("starts_at") else ""
    return f"{subject} takes no new job{starts}{_until(payload)}"


def _quota(subject: str, payload: Payload) -> str:
    before, after = payload["from"], payload["to"]
    return f"the quota of {subject} in the tier {payload['tier']} becomes {_limits(after)}; it was {_limits(before)}"


def _limits(limits: Payload | None) -> str:
    if limits is None:
        return "none"
    borrowable, ceiling = limits["borrowable_gpus"], limits["ceiling_gpus"]
    return (
        f"{limits['guaranteed_gpus']} GPUs guaranteed, "
        f"{'any number' if borrowable is None else borrowable} to borrow, "
        f"{'no ceiling' if ceiling is None else f'a ceiling of {ceiling}'}"
    )


def _placed(subject: str, payload: Payload) -> str:
    after = payload["to"]
    above = "under no other tenant" if after["parent_id"] is None else f"under {after['parent_id']}"
    return f"tenant {subject} stands {above}, with weight {after['weight']:g}"


def _residency(subject: str, payload: Payload) -> str:
    before, after = read_residency(payload["from"]).words(), read_residency(payload["to"]).words()
    return f"the residency rule of {subject} becomes: {after}; it was: {before}"


def _labelled(subject: str, payload: Payload) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in payload["to"].items())
    return f"node {subject} has the labels {labels}" if labels else f"node {subject} has no label"


def _overridden(subject: str, payload: Payload) -> str:
    return f"GPU {subject} counts as {payload['standing']}{_until(payload)}"


def _moved(standing: Standing) -> Callable[[str, Payload], str]:
    return lambda subject, payload: f"GPU {subject} moves from {payload.get('from') or 'no standing'} to {standing}"


def _drained(subject: str, payload: Payload) -> str:
    num_jobs = len(payload["jobs"])
    jobs = "no job has" if not num_jobs else "1 job has" if num_jobs == 1 else f"{num_jobs} jobs have"
    return f"node {subject} is drained: {jobs} to leave"


def _key(subject: str, payload: Payload) -> str:
    del subject
    return f"a key {payload['name']} of the role {payload['role']} is made"


def _resized(subject: str, payload: Payload) -> str:
    nodes = payload["nodes"]
    return f"job {subject} is to have {nodes} host{'' if nodes == 1 else 's'} from now on"


MOVES: Final = {f"gpu.{standing.lower()}": _moved(standing) for standing in Standing}
"""Kind of event → the sentence of a GPU's move. Rules may make some because of the change, which are stated too."""
SENTENCES: Final[Mapping[str, str | Callable[[str, Payload], str]]] = {
    "breaker.closed": "the breaker {subject} closes in {scope}: rules act there again, up to its cap",
    "bundle.begun": "the bundle {subject} is known, and complete once all of it is uploaded",
    "bundle.completed": "the bundle {subject} is complete",
    "bundle.deleted": "the bundle {subject} is deleted",
    "checkpoint.pinned": "the checkpoint of step {step} of {job} is kept until it is unpinned",
    "checkpoint.unpinned": "the checkpoint of step {step} of {job} may expire",
    "evidence.counts_again": "evidence about GPU {subject} counts again, and the GPU is judged",
    "evidence.dismissed": "evidence about GPU {subject} no longer counts, and the GPU is judged",
    "evidence.suspended": "evidence about GPU {subject} does not count for now, and the GPU is judged",
    "gpu.burn_in_ordered": "GPU {subject} gets a burn-in; it takes no job while that runs",
    "gpu.cordoned": _cordoned,
    "gpu.overridden": _overridden,
    "gpu.override_released": "the override of GPU {subject} ends; its own standing counts",
    "gpu.uncordoned": "a cordon of GPU {subject} ends",
    **MOVES,
    "incident.closed": "the incident {subject} is closed",
    "incident.extended": "an open incident covers more or less: {reason}",
    "incident.opened": "an incident opens: {reason}",
    "job.cancel_requested": "job {subject} is cancelled",
    "job.cancelled": "job {subject} is CANCELLED",
    "job.queued": "job {subject} is QUEUED",
    "job.held": "job {subject} is HELD",
    "job.released": "job {subject} is released to the queue",
    "job.resize_requested": _resized,
    "join_token.created": "a join token for the host {host_name} is made, valid until {expires_at}",
    "key.created": _key,
    "key.revoked": "the key {name} opens nothing any more",
    "node.cordoned": _cordoned,
    "node.draining": _drained,
    "node.labelled": _labelled,
    "node.maintenance_evacuation": "jobs on {subject} are asked to leave before the maintenance window",
    "node.uncordoned": "a cordon of node {subject} ends",
    "objective.act_despite_spent": "this takes place although the error budget of {subject} is spent",
    "person.created": "the person {name} is added",
    "person.disabled": "the person {name} can no longer sign in; sessions end",
    "person.password_reset": "the person {name} gets a new password; sessions end",
    "policy.activated": "the policy becomes version {version}, for every decision from then on",
    "policy.cohorts_rekeyed": "the cohorts of {num_gpus} GPUs are computed again",
    "rates.set": "the rate cards become version {version}",
    "secret.created": "the secret {name} is set",
    "secret.deleted": "the secret {name} is deleted: no later start gets it",
    "secret.rewrapped": "values of secrets are written again under the active key",
    "secret.rotated": "the secret {name} gets another value, for jobs that are placed from then on",
    "tenant.budget_lifted": "the budget of {amount} {currency} of {subject} counts no more",
    "tenant.budget_notice": "{spent} of {amount} {currency} are spent already: {share} %",
    "tenant.budget_set": "the budget of {subject} becomes {amount} {currency}, with {action} once it is spent",
    "tenant.budget_share_fell": "less of a budget is spent than was: {share} %",
    "tenant.created": "the tenant {name} is added",
    "tenant.placed": _placed,
    "tenant.quota_set": _quota,
    "tenant.residency_set": _residency,
}
"""Kind of event → its sentence: a format of the event's payload, or a function of subject and payload."""
_STATED_OF_JOBS: Final = frozenset({"job.cancel_requested", *(f"job.{state.lower()}" for state in JobState)})
"""Kinds of events that the effect on a job states already."""
