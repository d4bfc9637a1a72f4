"""Routes: where notifications go, and the states of a notification."""

from enum import StrEnum
from typing import Annotated, Final, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, SecretStr

from muster.domain.evidence.incidents import IncidentSeverity
from muster.domain.notifications.events import is_pattern
from muster.domain.notifications.mail_addresses import is_mail_address
from muster.domain.strict import Name, StrictModel

MOST_KINDS: Final = 64
MOST_RECEIVERS: Final = 10


class RouteKind(StrEnum):
    """The form in which a receiver takes notifications."""

    WEBHOOK = "webhook"
    EMAIL = "email"
    SLACK = "slack"
    PAGERDUTY = "pagerduty"
    ALERTMANAGER = "alertmanager"


class NotificationState(StrEnum):
    """PENDING until it is DELIVERED, or GIVEN_UP after its last try or because its route no longer sends."""

    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    GIVEN_UP = "GIVEN_UP"


def _kind(text: str) -> str:
    if not is_pattern(text):
        raise ValueError("must be a kind of event such as job.failed, or all of a noun, such as job.*")
    return text


def _url(text: str) -> str:
    parts = parts_of(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must have no user or password: receivers check the signature")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be visible ASCII characters; others are percent-encoded")
    return text


def parts_of(url: str) -> SplitResult:
    """Return an address's parts. Raises ValueError: its port is none."""
    parts = urlsplit(url)
    _ = parts.port
    return parts


def _address(text: str) -> str:
    if not is_mail_address(text):
        raise ValueError("must be one mail address, such as oncall@example.org")
    return text


Url = Annotated[str, Field(min_length=1, max_length=2_048), AfterValidator(_url)]
MailAddress = Annotated[str, Field(max_length=320), AfterValidator(_address)]


class WebhookTarget(StrictModel):
    """A receiver of signed webhooks, by Standard Webhooks."""

    kind: Literal["webhook"]
    url: Url


class MailTarget(StrictModel):
    """Receivers of mail, all in one mail."""

    kind: Literal["email"]
    to: Annotated[tuple[MailAddress, ...], Field(min_length=1, max_length=MOST_RECEIVERS, strict=False)]


class SlackTarget(StrictModel):
    """An incoming webhook of Slack, or what takes the same form. Its address is a secret."""

    kind: Literal["slack"]
    url: Url


PAGERDUTY_URL: Final = "https://events.pagerduty.com/v2/enqueue"


class PagerdutyTarget(StrictModel):
    """PagerDuty's Events API v2, or what takes the same form. ``url`` None: PagerDuty itself."""

    kind: Literal["pagerduty"]
    url: Url | None = None
    routing_key: Annotated[SecretStr, Field(min_length=1, max_length=256)]


class AlertmanagerTarget(StrictModel):
    """An Alertmanager, by its base address."""

    kind: Literal["alertmanager"]
    url: Url


Kinds = Annotated[
    tuple[Annotated[str, AfterValidator(_kind), Field(max_length=80)], ...],
    Field(max_length=MOST_KINDS, strict=False),
]
Target = Annotated[
    WebhookTarget | MailTarget | SlackTarget | PagerdutyTarget | AlertmanagerTarget, Field(discriminator="kind")
]


class RouteDefinition(StrictModel):
    """A route as its owner sets it. ``kinds`` empty: what is usual for its owner."""

    name: Name
    target: Target
    kinds: Kinds = ()
    least: Annotated[IncidentSeverity, Field(strict=False)] = IncidentSeverity.INFO


class RouteChange(StrictModel):
    """What changes of a route; what is not named stays.

    ``new_secret``: webhooks are signed by a new secret too, and by the one before while receivers change over.
    """

    name: Name | None = None
    target: Target | None = None
    kinds: Kinds | None = None
    least: Annotated[IncidentSeverity, Field(strict=False)] | None = None
    new_secret: bool = False


def url_of(target: WebhookTarget | SlackTarget | PagerdutyTarget | AlertmanagerTarget) -> str:
    """Return the address to which requests go."""
    if isinstance(target, AlertmanagerTarget):
        return f"{target.url.rstrip('/')}/api/v2/alerts"
    return target.url or PAGERDUTY_URL


def shown(target: Target) -> str:
    """Return the receiver without what may be secret: of an address its scheme and host alone."""
    if isinstance(target, MailTarget):
        return ", ".join(target.to)
    parts = parts_of(url_of(target))
    return f"{parts.scheme}://{parts.netloc}"
