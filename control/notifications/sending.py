"""The delivery of notifications: claim, try, store how it ended. At least once; each effect has one id in every try.

A claim is a lease, so what a worker held when it died is sent again by another. The notifications of one route are
tried by one thread in the order of their events, until the receiver is away. No route waits for another one's receiver:
each has a thread while it sends, and the routes of one owner have a few of them at most.
"""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy import select, text

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.notifications.delivery import Delivery, read_fact
from control.notifications.routes import Receiver, receiver_of
from control.policy.policies import active_policy
from control.secrets.key_wrapping import KeyWrapper
from muster.db.models import Notification, NotificationRoute, NotificationTry
from muster.domain.errors import MusterError, SecretKeyError
from muster.domain.ids import NotificationId, RouteId, TenantId
from muster.domain.notifications.addresses import Network
from muster.domain.notifications.events import Fact
from muster.domain.notifications.retries import Outcome, Tried, pause_of_notification, pause_of_route
from muster.domain.notifications.routes import NotificationState
from muster.domain.principals import system_principal
from muster.failpoints import declare, failpoint

CLAIM: Final = declare_action("notification.claim")
SETTLE: Final = declare_action("notification.settle")
AFTER_SEND: Final = declare("notification.after_send")
MOST_AT_ONCE: Final = 20
LEASE: Final = timedelta(seconds=120)
"""Time for which claimed notifications stay with their worker."""
MOST_S: Final = 60.0
"""Longest time for the tries of one claim; the rest of it is due again at once."""
NUM_THREADS: Final = 16
MOST_OF_OWNER: Final = 4
"""Threads for the routes of one tenant, or of the operators: receivers that hang hold no others up."""
_PRINCIPAL: Final = system_principal("notifier")
_RNG: Final = secrets.SystemRandom()
_DUE: Final = """
    SELECT r.id, r.tenant_id FROM notification_routes AS r
    WHERE r.off_reason IS NULL AND (r.paused_until IS NULL OR r.paused_until <= %(now)s)
        AND NOT (r.id = ANY(%(busy)s::text[])) AND EXISTS (
            SELECT FROM notifications AS n WHERE n.route_id = r.id AND n.state = 'PENDING' AND n.next_try_at <= %(now)s
        )
    ORDER BY coalesce(r.paused_until, r.created_at), r.id LIMIT 500
"""
_CLAIM: Final = text("""
    WITH due AS (
        SELECT n.id FROM notification_routes AS r CROSS JOIN LATERAL (
            SELECT id FROM notifications WHERE route_id = r.id AND state = 'PENDING' AND next_try_at <= :now
            ORDER BY position, id LIMIT CASE WHEN r.num_failures > 0 THEN 1 ELSE :most END FOR UPDATE SKIP LOCKED
        ) AS n
        WHERE r.id = :route_id AND r.off_reason IS NULL AND (r.paused_until IS NULL OR r.paused_until <= :now)
    )
    UPDATE notifications SET next_try_at = :until, tries = tries + 1 FROM due WHERE due.id = notifications.id
    RETURNING notifications.id, notifications.position, notifications.fact, notifications.tries
""")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A notification that this worker holds."""

    id: NotificationId
    fact: Fact
    tries: int


@dataclass(slots=True)
class _Batch:
    """The claimed notifications of one route, in their order, and how the tries ended."""

    route: NotificationRoute
    receiver: Receiver | None
    allowed: tuple[Network, ...]
    claimed: list[_Claimed]
    fault: str = ""
    results: list[Tried] = field(default_factory=list)


class Sender:
    """Sends what is due, in threads of its own. ``keys``: None: this control plane keeps no secrets.

    ``jitter``: 0 to 1, for the spread of pauses.
    """

    def __init__(
        self,
        units: UnitOfWorkFactory,
        keys: KeyWrapper | None,
        delivery: Delivery,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = _RNG.random,
    ) -> None:
        self._units = units
        self._keys = keys
        self._delivery = delivery
        self._monotonic = monotonic
        self._jitter = jitter
        self._busy: dict[RouteId, TenantId | None] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="notify")

    def start_due(self) -> list[Future[None]]:
        """Start a thread for each route with something due, as far as there are any. Raises ``UnavailableError``."""
        with self._lock:
            busy = dict(self._busy)
        due = self._units.ask(_DUE, {"now": self._units.clock(), "busy": list(busy)})
        num_free, of_owner = NUM_THREADS - len(busy), Counter(busy.values())
        started: list[Future[None]] = []
        for row in due:
            if len(started) >= num_free:
                break
            if of_owner[row.tenant_id] < MOST_OF_OWNER:
                of_owner[row.tenant_id] += 1
                with self._lock:
                    self._busy[row.id] = row.tenant_id
                started.append(self._threads.submit(self._send_all, row.id))
        return started

    def send_due(self) -> None:
        """Send all that is due, and wait for it. Raises what a thread raised."""
        while started := self.start_due():
            wait(started)
            for one in started:
                one.result()

    def close(self) -> None:
        """Start nothing more. What is in progress ends by itself, or is sent again by another worker."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send_all(self, route_id: RouteId) -> None:
        try:
            while (batch := self._claim(route_id)) is not None:
                self._try_all(batch)
                failpoint(AFTER_SEND)
                self._settle(batch)
        except MusterError as fault:  # the database does not answer: the lease ends, and it is sent again
            log.warning("notifications_not_settled", route_id=route_id, reason=str(fault))
        finally:
            with self._lock:
                self._busy.pop(route_id, None)

    def _claim(self, route_id: RouteId) -> _Batch | None:
        with self._units.begin(_PRINCIPAL, CLAIM, quiet=True) as unit:
            times = {"now": unit.now, "until": unit.now + LEASE, "most": MOST_AT_ONCE, "route_id": route_id}
            rows = sorted(unit.session.execute(_CLAIM, times).all(), key=lambda row: (row.position, row.id))
            route = unit.session.get(NotificationRoute, route_id) if rows else None
            policy = active_policy(unit.session).notifications
        if route is None:
            return None
        claimed = [_Claimed(row.id, read_fact(row.fact), row.tries) for row in rows]
        return self._batch(route, policy.networks_of(route.tenant_id), claimed)

    def _batch(self, route: NotificationRoute, allowed: tuple[Network, ...], claimed: list[_Claimed]) -> _Batch:
        if self._keys is None:
            return _Batch(route, None, allowed, claimed, "this control plane has no keys: it cannot open the receiver")
        try:
            return _Batch(route, receiver_of(self._keys, route), allowed, claimed)
        except SecretKeyError as fault:
            return _Batch(route, None, allowed, claimed, str(fault))

    def _try_all(self, batch: _Batch) -> None:
        began_s = self._monotonic()
        for one in batch.claimed:
            if self._monotonic() - began_s > MOST_S:
                break
            found = self._tried(batch, one)
            batch.results.append(found)
            if found.outcome not in {Outcome.DELIVERED, Outcome.REFUSED}:
                break

    def _tried(self, batch: _Batch, one: _Claimed) -> Tried:
        if batch.receiver is None:
            return Tried(Outcome.AWAY, batch.fault)
        return self._delivery.tried(
            one.id,
            one.fact,
            batch.receiver,
            route=batch.route.name,
            allowed=batch.allowed,
            at=self._units.clock(),
        )

    def _settle(self, batch: _Batch) -> None:
        with self._units.begin(_PRINCIPAL, SETTLE, quiet=True) as unit:
            row = unit.session.get(NotificationRoute, batch.route.id, with_for_update=True)
            if row is None:  # it was deleted meanwhile, with its notifications
                return
            held = {one.id: one for one in batch.claimed}
            query = select(Notification).where(Notification.id.in_(held)).order_by(Notification.id).with_for_update()
            rows = {found.id: found for found in unit.session.scalars(query)}
            for one, tried in zip(batch.claimed, batch.results, strict=False):
                if one.id in rows and rows[one.id].tries == one.tries:  # else its lease was over, and another has it
                    self._settle_one(unit, rows[one.id], tried)
            for one in batch.claimed[len(batch.results) :]:
                if one.id in rows and rows[one.id].tries == one.tries:
                    rows[one.id].tries, rows[one.id].next_try_at = one.tries - 1, unit.now
            self._settle_route(unit, row, batch.results)

    def _settle_one(self, unit: UnitOfWork, row: Notification, tried: Tried) -> None:
        unit.session.add(
            NotificationTry(
                notification_id=row.id,
                number=row.tries,
                at=unit.now,
                took_ms=tried.took_ms,
                outcome=tried.outcome,
                words=tried.words,
                status=tried.status,
            )
        )
        row.last_words = tried.words
        if tried.outcome is Outcome.DELIVERED:
            row.state, row.ended_at = NotificationState.DELIVERED, unit.now
        elif tried.outcome is Outcome.GONE or unit.now >= row.expires_at:
            row.state, row.ended_at = NotificationState.GIVEN_UP, unit.now
            log.warning("notification_given_up", notification_id=row.id, route_id=row.route_id, words=tried.words)
        elif tried.outcome is Outcome.REFUSED:
            row.next_try_at = unit.now + pause_of_notification(row.tries, self._jitter)
        else:  # its route waits for the receiver
            row.next_try_at = unit.now

    def _settle_route(self, unit: UnitOfWork, row: NotificationRoute, results: Sequence[Tried]) -> None:
        if not results:
            return
        last = results[-1]
        if last.outcome is Outcome.GONE:
            row.off_reason = f"its receiver takes no more: {last.words}"
            detail = {"name": row.name, "reason": row.off_reason}
            unit.emit("route.turned_off", "route", row.id, tenant_id=row.tenant_id, payload=detail)
        elif last.outcome in {Outcome.AWAY, Outcome.FORBIDDEN}:
            row.num_failures += 1
            row.paused_until = unit.now + pause_of_route(row.num_failures, last.retry_after_s, self._jitter)
        else:
            row.num_failures, row.paused_until = 0, None
