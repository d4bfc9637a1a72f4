"""A tenant, a fleet, and routes of both to receivers on loopback."""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import select

from control.core.sequencer import sequence_once
from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from control.notifications import read, routes, sealing
from control.notifications.delivery import Delivery
from control.notifications.fan_out import fan_out_once
from control.notifications.http_receiver import HttpSender
from control.notifications.mail_receiver import MailServer
from control.notifications.routes import RouteRecord
from control.notifications.sending import Sender
from control.policy import activation, policies
from control.secrets.key_file import FileKeys
from muster.db.models import Notification, NotificationTry
from muster.domain.ids import RouteId
from muster.domain.notifications.routes import RouteChange, RouteDefinition
from muster.domain.policy.document import Policy
from muster.domain.principals import Principal, system_principal
from tests.control.conftest import SetClock
from tests.control.secrets.secret_case import admin_of, key_file
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.receivers import Receiver

HAPPEN = declare_action("test.happen")
LOOPBACK = ("127.0.0.0/8",)


@dataclass
class RouteCase:
    """What is sent goes out by ``send``, in this thread's time."""

    units: UnitOfWorkFactory
    clock: SetClock
    fleet: Fleet
    keys: FileKeys
    delivery: Delivery = field(
        default_factory=lambda: Delivery(HttpSender(limit_s=5.0), console_url="https://m.example")
    )

    @classmethod
    def made(cls, units: UnitOfWorkFactory, clock: SetClock, folder: Path) -> "RouteCase":
        case = cls(units, clock, make_fleet(units), key_file(folder / "keys", "k1"))
        case.allow(tenant_networks=LOOPBACK, operator_networks=LOOPBACK)
        return case

    def allow(self, **notifications: Any) -> None:
        document = Policy.model_validate({"notifications": notifications}, strict=False)
        with self.units.begin(OPERATOR, policies.ACTIVATE) as unit:
            activation.activate(unit, document, reason="tests")

    def route(
        self, target: dict[str, Any], *kinds: str, by: Principal | None = None, name: str = "own", **more: Any
    ) -> RouteRecord:
        """Return a new route of the tenant, or of ``by``."""
        return self.with_secret(target, *kinds, by=by, name=name, **more)[0]

    def with_secret(
        self, target: dict[str, Any], *kinds: str, by: Principal | None = None, name: str = "own", **more: Any
    ) -> tuple[RouteRecord, str | None]:
        who = by or admin_of(self.fleet.tenant_id)
        document = {"name": name, "target": target, "kinds": kinds, **more}
        definition = RouteDefinition.model_validate(document, strict=False)
        sealed = sealing.seal_new(self.keys, who, definition)
        with self.units.begin(who, routes.CREATE) as unit:
            return routes.create(unit, sealed), sealed.secret

    def change(self, route: RouteRecord, **change: Any) -> None:
        who = admin_of(self.fleet.tenant_id)
        sealed = sealing.seal_next(
            self.units, self.keys, who, route.id, RouteChange.model_validate(change, strict=False)
        )
        with self.units.begin(who, routes.REPLACE) as unit:
            routes.replace(unit, sealed)

    def delete(self, route: RouteRecord) -> None:
        with self.units.begin(admin_of(self.fleet.tenant_id), routes.DELETE) as unit:
            routes.delete(unit, route.id)

    def happens(self, event: str, *subjects: str, **payload: Any) -> None:
        """Let an event happen to each subject. ``tenant_id`` in the payload: whose it is."""
        tenant_id = payload.pop("tenant_id", None)
        with self.units.begin(system_principal("test"), HAPPEN) as unit:
            for subject in subjects:
                unit.emit(event, event.partition(".")[0], subject, tenant_id=tenant_id, payload=payload)

    def fan_out(self) -> None:
        while sequence_once(self.units):
            pass
        while fan_out_once(self.units):
            pass

    def send(self) -> None:
        """Make the notifications of what happened, and send what is due."""
        self.fan_out()
        sender = Sender(self.units, self.keys, self.delivery, jitter=lambda: 0.0)
        try:
            sender.send_due()
        finally:
            sender.close()

    def use_mail(self, url: str) -> None:
        self.delivery = Delivery(self.delivery.http, MailServer(url, "muster@example.org", step_s=5.0))

    def later(self, **time: float) -> None:
        self.clock.now += timedelta(**time)

    def notifications(self) -> list[Notification]:
        with self.units.read() as session:
            return list(session.scalars(select(Notification).order_by(Notification.position)))

    def tries(self) -> list[NotificationTry]:
        with self.units.read() as session:
            return list(session.scalars(select(NotificationTry).order_by(NotificationTry.at, NotificationTry.number)))

    def found(self, route_id: RouteId) -> RouteRecord:
        with self.units.begin(OPERATOR, routes.READ) as unit:
            return routes.get(unit, route_id)

    def resend(self, notification: Notification) -> None:
        who = admin_of(self.fleet.tenant_id)
        with self.units.begin(who, read.RESEND) as unit:
            read.resend(unit, notification.route_id, notification.id)


def webhook(receiver: Receiver, path: str = "/hook?x=1") -> dict[str, str]:
    return {"kind": "webhook", "url": f"{receiver.url}{path}"}


def subjects(receiver: Receiver) -> list[str]:
    return [taken.document["data"]["subject_id"] for taken in receiver.taken]
