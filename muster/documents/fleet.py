"""Nodes, cordons, incidents and join tokens, as the API answers and accepts them."""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Json, Moment, OneOf, Page
from muster.domain.evidence.incidents import IncidentState


class NewCordon(TypedDict):
    """A cordon to create, on exactly one of ``node_id`` and ``gpu_uuid``.

    Without ``until`` it lasts until it is released.
    """

    reason: str
    node_id: NotRequired[str | None]
    gpu_uuid: NotRequired[str | None]
    until: NotRequired[Moment | None]


class Cordon(TypedDict):
    """A cordon. ``starts_at``: when it comes into force; null: when it was created.

    ``evacuate_at``: when jobs there get a stop request; null: they continue to run.
    """

    id: str
    node_id: str | None
    gpu_uuid: str | None
    reason_code: str
    reason: str
    owner: str
    starts_at: Moment | None
    evacuate_at: Moment | None
    until: Moment | None
    created_at: Moment
    released_at: Moment | None
    released_by: str | None


class ChangedCordon(Cordon, Trial):
    """The cordon after a change."""


class CordonPage(Page):
    items: list[Cordon]


class Incident(TypedDict):
    """An incident. ``summary``: what happened and why. ``to_do``: what a person does about it, null once it is closed.

    ``closes``: how it closes if no person may close it. ``details`` depend on its kind.
    """

    id: str
    kind: str
    state: Annotated[str, OneOf(IncidentState)]
    subject_type: str
    subject_id: str
    summary: str
    details: Json
    to_do: str | None
    closes: str | None
    opened_at: Moment
    closed_at: Moment | None
    closed_by: str | None
    close_reason: str | None


class ChangedIncident(Incident, Trial):
    """The incident after a change."""


class IncidentPage(Page):
    items: list[Incident]


class NewJoinToken(TypedDict):
    """A join token to create. ``address``: the address for ranks; by default the one from which the host enrols."""

    host_name: str
    expires_in_s: NotRequired[int]
    address: NotRequired[str | None]
    rack: NotRequired[str | None]


class JoinToken(Trial):
    """``token`` is in this answer alone."""

    token: str
    host_name: str
    expires_at: Moment
    address: str | None
    rack: str | None
