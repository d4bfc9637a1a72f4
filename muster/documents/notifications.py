"""Routes of notifications and what went out over them, as the API answers and accepts them."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Json, Moment, OneOf, Page
from muster.domain.evidence.incidents import IncidentSeverity
from muster.domain.notifications.retries import Outcome
from muster.domain.notifications.routes import NotificationState, RouteKind


class NotificationRoute(TypedDict):
    """A route. ``tenant_id`` null: of the operators. ``target``: its receiver, of an address scheme and host alone.

    ``kinds``: of events, ``job.*`` for all of a noun. ``least``: of incidents, at least so severe. ``num_failures``:
    tries in a row at which the receiver was away; ``paused_until``: when it is tried again. ``off_reason``: why nothing
    goes out; null: it is on.
    """

    id: str
    tenant_id: str | None
    name: str
    kind: Annotated[str, OneOf(RouteKind)]
    target: str
    kinds: list[str]
    least: Annotated[str, OneOf(IncidentSeverity)]
    version: int
    created_at: Moment
    created_by: str
    updated_at: Moment
    num_failures: int
    paused_until: Moment | None
    off_reason: str | None


class ChangedNotificationRoute(NotificationRoute, Trial):
    """The route after a change."""


class NotificationRouteWithSecret(ChangedNotificationRoute):
    """The route after a change. ``secret``: that signs its webhooks, where it is new; it is never shown again."""

    secret: str | None


class NotificationRoutePage(Page):
    items: list[NotificationRoute]


class WebhookReceiver(TypedDict):
    url: str
    kind: Literal["webhook"]


class MailReceiver(TypedDict):
    to: list[str]
    kind: Literal["email"]


class SlackReceiver(TypedDict):
    url: str
    kind: Literal["slack"]


class PagerdutyReceiver(TypedDict):
    routing_key: str
    kind: Literal["pagerduty"]
    url: NotRequired[str | None]


class AlertmanagerReceiver(TypedDict):
    url: str
    kind: Literal["alertmanager"]


RouteTarget = WebhookReceiver | MailReceiver | SlackReceiver | PagerdutyReceiver | AlertmanagerReceiver
"""The receiver of a route."""


class NewNotificationRoute(TypedDict):
    """``kinds`` empty: what is usual for its owner. ``tenant_id``: whose it is, for an operator."""

    name: str
    target: RouteTarget
    kinds: NotRequired[list[str]]
    least: NotRequired[Literal["page", "ticket", "info"]]
    tenant_id: NotRequired[str | None]


class NotificationRouteChange(TypedDict):
    """What changes; what is not named stays."""

    name: NotRequired[str | None]
    target: NotRequired[RouteTarget | None]
    kinds: NotRequired[list[str] | None]
    least: NotRequired[Literal["page", "ticket", "info"] | None]
    new_secret: NotRequired[bool]


class NotificationSummary(TypedDict):
    """One notification. ``next_try_at``: while it is PENDING. ``last_words``: how its newest try ended."""

    id: str
    event_id: str
    event_kind: str
    title: str
    severity: Annotated[str, OneOf(IncidentSeverity)]
    state: Annotated[str, OneOf(NotificationState)]
    created_at: Moment
    next_try_at: Moment | None
    ended_at: Moment | None
    num_tries: int
    last_words: str | None


class NotificationTry(TypedDict):
    """One try. ``status``: of HTTP or SMTP, null where there was no answer."""

    number: int
    at: Moment
    took_ms: int
    outcome: Annotated[str, OneOf(Outcome)]
    words: str
    status: int | None


class Notification(NotificationSummary):
    """One notification with its text, the event's facts, and its tries, the newest first."""

    text: str
    payload: Json
    tries: list[NotificationTry]


class ChangedNotification(NotificationSummary, Trial):
    """The notification after it was sent again."""


class NotificationPage(Page):
    items: list[NotificationSummary]
