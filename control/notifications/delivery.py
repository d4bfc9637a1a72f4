"""One try: the notification in the form that its receiver takes, sent by HTTP or mail. No transaction is open."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from control.notifications.http_receiver import HttpSender, Post
from control.notifications.mail_receiver import MailServer
from control.notifications.sealing import Receiver
from muster.domain.notifications import forms
from muster.domain.notifications.addresses import Network
from muster.domain.notifications.events import Fact
from muster.domain.notifications.notes import note_of
from muster.domain.notifications.retries import Outcome, Tried
from muster.domain.notifications.routes import AlertmanagerTarget, MailTarget, PagerdutyTarget, SlackTarget, url_of
from muster.domain.notifications.signatures import signed_headers

_JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Delivery:
    """The means of a process. ``mail``: None: no SMTP server is set. ``console_url``: for links; empty: none."""

    http: HttpSender
    mail: MailServer | None = None
    console_url: str = ""

    def tried(
        self,
        notification_id: str,
        fact: Fact,
        receiver: Receiver,
        *,
        route: str,
        allowed: tuple[Network, ...],
        at: datetime,
    ) -> Tried:
        """Send and return how it ended. ``at``: now. ``allowed``: networks besides public addresses."""
        note = note_of(fact)
        url = f"{self.console_url}{note.path}" if self.console_url else ""
        letter = forms.Letter(notification_id, fact, note, url)
        target = receiver.target
        if isinstance(target, MailTarget):
            if self.mail is None:
                return Tried(Outcome.AWAY, "this control plane sends no mail: MUSTER_SMTP_URL is not set")
            return self.mail.send(forms.mail(letter, self.mail.sender, target.to, route), target.to)
        headers, secret = dict(_JSON), ""
        if isinstance(target, SlackTarget):
            body = forms.slack_body(letter)
        elif isinstance(target, PagerdutyTarget):
            secret = target.routing_key.get_secret_value()
            body = forms.pagerduty_body(letter, secret)
        elif isinstance(target, AlertmanagerTarget):
            body = forms.alertmanager_body(letter)
        else:
            body = forms.webhook_body(letter)
            headers |= signed_headers(notification_id, at, body, receiver.secrets)
        return self.http.send(Post(url_of(target), headers, body, allowed, secret))


def read_fact(stored: Mapping[str, Any]) -> Fact:
    """Return the fact that ``control.notifications.fan_out.stored`` stored."""
    return Fact(**{**stored, "at": datetime.fromisoformat(stored["at"])})
