"""The delivery of notifications: claim, try, store how it ended. At least once; each effect has one id in every try.

A claim is a lease, so what a worker held when it died is sent again by another. The notifications of one route are
tried by one thread in the order of their events, until the receiver is away. No route waits for another one's receiver:
each has a thread while it sends, and the routes of one owner have a few of them at most.
"""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import select, update

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.notifications.delivery import Delivery, read_fact
from control.notifications.sealing import Receiver, receiver_of
from control.policy.policies import active_policy
from control.secrets.key_wrapping import KeyWrapper
from muster.db.models import Notification, NotificationRoute, NotificationTry
from muster.db.pipeline.batched import query_together
from muster.domain.errors import MusterError, SecretKeyError
from muster.domain.ids import NotificationId, RouteId, TenantId
from muster.domain.notifications.addresses import Network
from muster.domain.notifications.events import Fact
from muster.domain.notifications.retries import Outcome, Tried, pause_of_notification, pause_of_route
from muster.domain.notifications.routes import MailTarget, NotificationState
from muster.domain.policy.notifications import NotificationPolicy
from muster.domain.principals import system_principal
from muster.failpoints import declare, failpoint

CLAIM: Final = declare_action("notification.claim")
SETTLE: Final = declare_action("notification.settle")
AFTER_SEND: Final = declare("notification.after_send")
MOST_AT_ONCE: Final = 20
LEASE: Final = timedelta(seconds=180)
"""Time for which claimed notifications stay with their worker."""
MOST_S: Final = 60.0
"""Longest time for the tries of one claim but the last one; the rest of it is due again at once."""
NUM_THREADS: Final = 16
MOST_OF_OWNER: Final = 4
"""Threads for the routes of one tenant, or of the operators."""
MOST_OF_TENANTS: Final = 12
"""Threads for all tenants together: the others are the operators'."""
MOST_FAILED_ALONE: Final = 10
FAILED_ALONE_PAUSE: Final = timedelta(hours=1)
"""After so many tries a notification that its receiver answers with an error waits so long: others are tried."""
_PRINCIPAL: Final = system_principal("notifier")
_RNG: Final = secrets.SystemRandom()
_IS_OPEN: Final = "r.off_reason IS NULL AND (r.paused_until IS NULL OR r.paused_until <= %(now)s)"
_IS_DUE: Final = """
    n.state = 'PENDING' AND n.next_try_at <= %(now)s AND (n.claimed_until IS NULL OR n.claimed_until <= %(now)s)
"""
_DUE: Final = f"""
    SELECT id, tenant_id FROM (
        SELECT r.id, r.tenant_id, row_number() OVER (PARTITION BY r.tenant_id ORDER BY r.id) AS place
        FROM notification_routes AS r
        WHERE {_IS_OPEN} AND NOT (r.id = ANY(%(busy)s::text[]))
            AND EXISTS (SELECT FROM notifications AS n WHERE n.route_id = r.id AND {_IS_DUE})
    ) AS due WHERE place <= 100
"""  # noqa: S608  # words of ours
_CLAIM: Final = f"""
    WITH due AS (
        SELECT n.id FROM notification_routes AS r CROSS JOIN LATERAL (
            SELECT n.id FROM notifications AS n WHERE n.route_id = r.id AND {_IS_DUE}
            ORDER BY n.position, n.id LIMIT CASE WHEN r.num_failures > 0 THEN 1 ELSE %(most)s END
            FOR UPDATE SKIP LOCKED
        ) AS n
        WHERE r.id = %(route_id)s AND {_IS_OPEN}
    )
    UPDATE notifications SET claimed_until = %(until)s, tries = tries + 1 FROM due WHERE due.id = notifications.id
    RETURNING notifications.id, notifications.position, notifications.fact, notifications.tries
"""  # noqa: S608  # words of ours

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A notification that this worker holds."""

    id: NotificationId
    fact: Fact
    tries: int


@dataclass(frozen=True, slots=True)
class _Result:
    """How a try ended, and when it began."""

    at: datetime
    tried: Tried


@dataclass(slots=True)
class _Batch:
    """The claimed notifications of one route, in their order, and how the tries ended."""

    route: NotificationRoute
    receiver: Receiver | None
    allowed: tuple[Network, ...]
    claimed: list[_Claimed]
    fault: str = ""
    results: list[_Result] = field(default_factory=list)


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
        self._turns: dict[RouteId, int] = {}
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="notify")

    @property
    def is_busy(self) -> bool:
        return bool(self._busy)

    def start_due(self) -> list[Future[None]]:
        """Start a thread for each route with something due, as far as there are any. Raises ``UnavailableError``.

        The routes that were served longest ago come first. Each thread sends one claim.
        """
        with self._lock:
            busy = dict(self._busy)
        due = self._units.ask(_DUE, {"now": self._units.clock(), "busy": list(busy)})
        of_owner = Counter(busy.values())
        started: list[Future[None]] = []
        for row in sorted(due, key=lambda row: (self._turns.get(row.id, 0), row.id)):
            of_tenants = sum(count for owner, count in of_owner.items() if owner is not None)
            if of_owner.total() >= NUM_THREADS:
                break
            if of_owner[row.tenant_id] >= MOST_OF_OWNER or (row.tenant_id and of_tenants >= MOST_OF_TENANTS):
                continue
            of_owner[row.tenant_id] += 1
            with self._lock:
                self._busy[row.id] = row.tenant_id
                self._turns[row.id] = 1 + max(self._turns.values(), default=0)
            started.append(self._threads.submit(self._send, row.id))
        return started

    def send_due(self) -> None:
        """Send all that is due, and wait for it. Raises what a thread raised."""
        while started := self.start_due():
            wait(started)
            for one in started:
                one.result()

    def close(self) -> None:
        """Start nothing more. A claim ends with its present try, and what it has not tried is due again."""
        self._is_closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, route_id: RouteId) -> None:
        try:
            batch = None if self._is_closed.is_set() else self._claim(route_id)
            if batch is not None:
                self._try_all(batch)
                failpoint(AFTER_SEND)
                retrying(lambda: self._settle(batch))
        except MusterError as fault:  # the database does not answer: the lease ends, and it is sent again
            log.warning("notifications_not_settled", route_id=route_id, reason=str(fault))
        except Exception:
            log.exception("notifications_failed", route_id=route_id)
            raise
        finally:
            with self._lock:
                self._busy.pop(route_id, None)

    def _claim(self, route_id: RouteId) -> _Batch | None:
        with self._units.begin(_PRINCIPAL, CLAIM, quiet=True) as unit:
            times = {"now": unit.now, "until": unit.now + LEASE, "most": MOST_AT_ONCE, "route_id": route_id}
            (found,) = query_together(unit.session, (_CLAIM, times))
            rows = sorted(found, key=lambda row: (row.position, row.id))
            route = unit.session.get(NotificationRoute, route_id) if rows else None
            policy = active_policy(unit.session).notifications
        if route is None:
            return None
        claimed = [_Claimed(row.id, read_fact(row.fact), row.tries) for row in rows]
        return self._batch(route, policy, claimed)

    def _batch(self, route: NotificationRoute, policy: NotificationPolicy, claimed: list[_Claimed]) -> _Batch:
        allowed = policy.networks_of(route.tenant_id)
        if self._keys is None:
            return _Batch(route, None, allowed, claimed, "this control plane has no keys: it cannot open the receiver")
        try:
            receiver = receiver_of(self._keys, route)
        except SecretKeyError as fault:
            return _Batch(route, None, allowed, claimed, str(fault))
        to = receiver.target.to if isinstance(receiver.target, MailTarget) else ()
        if policy.refused_address(route.tenant_id, to) is not None:
            fault_of_policy = "the policy allows no mail to its domain (`notifications.mail_domains`)"
            return _Batch(route, None, allowed, claimed, fault_of_policy)
        return _Batch(route, receiver, allowed, claimed)

    def _try_all(self, batch: _Batch) -> None:
        began_s = self._monotonic()
        for one in batch.claimed:
            if self._is_closed.is_set() or self._monotonic() - began_s > MOST_S:
                break
            at = self._units.clock()
            tried = self._tried(batch, one, at)
            batch.results.append(_Result(at, tried))
            if tried.outcome not in {Outcome.DELIVERED, Outcome.REFUSED}:
                break

    def _tried(self, batch: _Batch, one: _Claimed, at: datetime) -> Tried:
        if batch.receiver is None:
            return Tried(Outcome.AWAY, batch.fault)
        try:
            return self._delivery.tried(
                one.id, one.fact, batch.receiver, route=batch.route.name, allowed=batch.allowed, at=at
            )
        except Exception as fault:  # whatever it is, it must neither stop the others nor be tried without a pause
            log.exception("notification_not_sent", notification_id=one.id, route_id=batch.route.id)
            return Tried(Outcome.REFUSED, f"a fault of this control plane: {type(fault).__name__}")

    def _settle(self, batch: _Batch) -> None:
        with self._units.begin(_PRINCIPAL, SETTLE, quiet=True) as unit:
            route = unit.session.get(NotificationRoute, batch.route.id, with_for_update={"key_share": True})
            if route is None:  # it was removed meanwhile, with its notifications
                return
            claimed = {one.id: one for one in batch.claimed}
            query = select(Notification).where(Notification.id.in_(claimed)).order_by(Notification.id)
            rows = {row.id: row for row in unit.session.scalars(query.with_for_update())}
            # Where the tries differ, the lease was over and another worker has it.
            own = {one.id: rows[one.id] for one in batch.claimed if one.id in rows and rows[one.id].tries == one.tries}
            is_same = route.version == batch.route.version
            for one, result in zip(batch.claimed, batch.results, strict=False):
                if one.id in own:
                    self._settle_one(unit, own.pop(one.id), result, is_same=is_same)
            for row in own.values():
                row.tries, row.claimed_until = row.tries - 1, None
            if is_same and batch.results:
                self._settle_route(unit, route, batch.results[-1].tried)

    def _settle_one(self, unit: UnitOfWork, row: Notification, result: _Result, *, is_same: bool) -> None:
        """Store a try. ``is_same``: the route is as it was, else the former receiver's refusal is none of the new."""
        tried = result.tried
        unit.session.add(
            NotificationTry(
                notification_id=row.id,
                number=row.tries,
                at=result.at,
                took_ms=tried.took_ms,
                outcome=tried.outcome,
                words=tried.words,
                status=tried.status,
            )
        )
        row.last_words, row.claimed_until = tried.words, None
        if tried.outcome is Outcome.DELIVERED:
            row.state, row.ended_at = NotificationState.DELIVERED, unit.now
        elif is_same and (tried.outcome is Outcome.GONE or unit.now >= row.expires_at):
            row.state, row.ended_at = NotificationState.GIVEN_UP, unit.now
            log.warning("notification_given_up", notification_id=row.id, route_id=row.route_id, words=tried.words)
        elif is_same and tried.outcome is Outcome.REFUSED:
            row.num_refusals += 1
            row.next_try_at = unit.now + pause_of_notification(row.num_refusals, self._jitter)
        elif is_same and tried.status is not None and row.tries >= MOST_FAILED_ALONE:
            row.next_try_at = unit.now + FAILED_ALONE_PAUSE

    def _settle_route(self, unit: UnitOfWork, route: NotificationRoute, last: Tried) -> None:
        if last.outcome is Outcome.GONE:
            route.off_reason = f"its receiver takes no more: {last.words}"
            give_up = update(Notification).where(
                Notification.route_id == route.id, Notification.state == NotificationState.PENDING
            )
            unit.session.execute(give_up.values(state=NotificationState.GIVEN_UP, ended_at=unit.now))
            detail = {"name": route.name, "reason": route.off_reason}
            unit.emit("route.turned_off", "route", route.id, tenant_id=route.tenant_id, payload=detail)
        elif last.outcome in {Outcome.AWAY, Outcome.FORBIDDEN}:
            route.num_failures += 1
            route.paused_until = unit.now + pause_of_route(route.num_failures, last.retry_after_s, self._jitter)
        else:
            route.num_failures, route.paused_until = 0, None
