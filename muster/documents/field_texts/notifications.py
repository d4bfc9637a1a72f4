"""Fields of routes and notifications that their classes do not describe."""

from typing import Final

NOTIFICATION_TEXTS: Final[dict[str, str]] = {
    "NewRoute.kinds": "Kinds of events, such as job.failed, or job.* for all of a noun; none: what is usual.",
    "NewRoute.least": "Of incidents, only each that is at least so severe.",
    "NewRoute.name": "Its name, once for each owner.",
    "NewRoute.target": "The receiver.",
    "NewRoute.tenant_id": "The tenant whose events it takes, for operators; null: of all tenants.",
    "Policy.notifications": "To which receivers notifications go.",
    "RouteChange.kinds": "Kinds of events, in place of the former ones.",
    "RouteChange.least": "Of incidents, only each that is at least so severe.",
    "RouteChange.name": "Its new name.",
    "RouteChange.target": "The receiver, in place of the one before.",
    "AlertmanagerTarget.url": "Its base address.",
    "MailTarget.to": "Mail addresses, all in one mail.",
    "PagerdutyTarget.routing_key": "The routing key of a service, which is a secret.",
    "PagerdutyTarget.url": "The address of the Events API v2.",
    "SlackTarget.url": "The address of the incoming webhook, which is a secret.",
    "WebhookTarget.url": "The address that takes the webhooks.",
    "NotificationRoute.kind": "The form in which the receiver takes notifications.",
    "NotificationSummary.event_id": "The id of the event.",
    "NotificationSummary.event_kind": "The kind of the event.",
    "NotificationSummary.num_tries": "How many tries there were.",
    "NotificationSummary.title": "What happened, in one line.",
    "Notification.tries": "The tries, the newest first.",
    "NotificationTry.outcome": "How it ended.",
    "NotificationTry.took_ms": "How long it took, in milliseconds.",
    "NotificationTry.words": "What the receiver answered, or why there was no answer.",
}
