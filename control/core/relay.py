"""The outbox's relay: committed messages go out at least once, never from inside a transaction."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from control.core.unit_of_work import WAKEUP_TOPIC, UnitOfWorkFactory, declare_action
from muster.db.models import OutboxMessage
from muster.db.queries.outbox import by_ids, claim_due
from muster.domain.principals import system_principal
from muster.failpoints import declare, failpoint

Send = Callable[[str, str, dict[str, Any]], None]
"""Function of (topic, key, payload). An exception means that the message did not arrive, and it is sent again."""

WAKEUP_STALE_AFTER: Final = timedelta(seconds=60)
"""Age at which a wake-up is useless: by then the host's own heartbeat has listed its unclaimed attempts."""

MAX_TRIES: Final = 20
CLAIM_LEASE: Final = timedelta(seconds=15)
"""Time for which a claimed message stays with its relay: after a crash another relay sends it again."""

BACKOFF_BASE_S: Final = 0.2
BACKOFF_CAP_S: Final = 30.0

CLAIM: Final = declare_action("relay.claim")
SETTLE: Final = declare_action("relay.settle")
AFTER_SEND: Final = declare("relay.after_send")

_PRINCIPAL: Final = system_principal("relay")
_DUE: Final = """
    SELECT EXISTS (
        SELECT FROM outbox WHERE sent_at IS NULL AND dead_at IS NULL AND next_try_at <= %(now)s
    ) AS is_pending
"""
_RNG: Final = secrets.SystemRandom()
_ERROR_CHARACTERS: Final = 500

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class RelayRound:
    """Result of one round, by message id.

    ``failed`` maps to the error's text; those messages are retried or given up.
    """

    sent: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        return not (self.sent or self.failed or self.dropped)


def has_due(units: UnitOfWorkFactory) -> bool:
    """Return whether a message is due, which another relay may hold. Raises ``UnavailableError``."""
    return bool(units.ask(_DUE, {"now": units.clock()})[0].is_pending)


def relay_once(units: UnitOfWorkFactory, send: Send, *, batch: int = 50) -> RelayRound:
    """Claim up to ``batch`` due messages, send each, and store the results.

    Any number of relays may run. A message can arrive twice (a crash between sending and settling), so receivers must
    accept that. Order is kept per destination only while nothing fails. Raises ``UnavailableError``.
    """
    outcome = RelayRound()
    claimed = _claim(units, outcome, batch)
    for message in claimed:
        _send_one(message, send, outcome)
    if outcome.sent or outcome.failed:
        failpoint(AFTER_SEND)
        _settle(units, outcome)
    return outcome


def _claim(units: UnitOfWorkFactory, outcome: RelayRound, batch: int) -> list[OutboxMessage]:
    claimed = []
    with units.begin(_PRINCIPAL, CLAIM, quiet=True) as unit:
        for message in claim_due(unit.session, now=unit.now, batch=batch):
            if message.topic == WAKEUP_TOPIC and unit.now - message.created_at > WAKEUP_STALE_AFTER:
                message.sent_at, message.last_error = unit.now, "dropped: the heartbeat carries it by now"
                outcome.dropped.append(message.id)
            elif message.tries >= MAX_TRIES:
                _give_up(message, unit.now)
            else:
                message.tries += 1
                message.next_try_at = unit.now + CLAIM_LEASE
                claimed.append(message)
    return claimed


def _send_one(message: OutboxMessage, send: Send, outcome: RelayRound) -> None:
    try:
        send(message.topic, message.key, message.payload)
    except Exception as error:  # noqa: BLE001  # whatever a destination raises is an outcome, written down in the row
        outcome.failed[message.id] = f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS]
        log.warning("outbox_send_failed", message_id=message.id, topic=message.topic, tries=message.tries)
    else:
        outcome.sent.append(message.id)


def _settle(units: UnitOfWorkFactory, outcome: RelayRound) -> None:
    with units.begin(_PRINCIPAL, SETTLE, quiet=True) as unit:
        for message in by_ids(unit.session, [*outcome.sent, *outcome.failed]):
            if message.id not in outcome.failed:
                message.sent_at, message.last_error = unit.now, None
                continue
            message.last_error = outcome.failed[message.id]
            if message.tries >= MAX_TRIES:
                _give_up(message, unit.now)
            else:
                message.next_try_at = unit.now + backoff(message.tries)


def _give_up(message: OutboxMessage, now: datetime) -> None:
    message.dead_at = now
    log.error("outbox_message_dead", message_id=message.id, topic=message.topic, key=message.key, tries=message.tries)


def backoff(tries: int, *, rng: Callable[[float, float], float] = _RNG.uniform) -> timedelta:
    """Return the pause before a try, with full jitter: from 0 to 0.2 s doubled with each try, 30 s at most."""
    return timedelta(seconds=rng(0, min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(tries - 1, 16))))
