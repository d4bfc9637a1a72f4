"""The one sender: current state first, events at once, history after it at a bounded share.

Nothing is forgotten before the server has acknowledged it, so a report may arrive twice; the server takes each
(boot_id, seq) once. Retries have full jitter. A report that the server refuses permanently is set aside, counted, and
never blocks the rest.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import structlog

from agents.spool.entries import Entry, Identity
from agents.spool.spool import Spool
from agents.telemetry_client import Accepted, Later, Outcome, Refused
from muster.wire.telemetry import Report

POLL_S: Final = 1.0
"""Interval at which an idle uplink checks whether it has to stop."""
FAILURES_TO_SET_ASIDE: Final = 5
_log = structlog.get_logger(__name__)


class Sender(Protocol):
    def send(self, content: bytes) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class UplinkConfig:
    """Pace of the uplink. ``history_share``: of the uplink's time; ``history_per_s``: reports.

    ``event_retry_ms``: how soon an event may shorten a pause that the server did not ask for.
    """

    retry_base_ms: int = 200
    retry_cap_ms: int = 30_000
    history_share: float = 0.5
    history_per_s: float = 20.0
    current_for_ms: int = 60_000
    event_retry_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class _Parcel:
    identity: Identity
    content: bytes
    is_history: bool


@dataclass(slots=True)
class _Failures:
    """Failures of one report. Others that were accepted since the first show that it is the report, not the server.

    ``accepted_before``: how many were accepted at the first failure.
    """

    accepted_before: int
    count: int = 0


class Uplink:
    """The sender. ``monotonic_ms`` times pauses, ``wall_ms`` judges how old a sample is."""

    def __init__(
        self,
        spool: Spool,
        sender: Sender,
        boot_id: str,
        *,
        config: UplinkConfig | None = None,
        monotonic_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self._spool = spool
        self._sender = sender
        self._boot_id = boot_id
        self._config = config or UplinkConfig()
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        self._rng = rng
        self.on_interval: Callable[[float], None] = lambda _seconds: None
        """Called with the interval of samples that the server requests."""
        self._live_seq = spool.newest_seq(boot_id)
        self._num_tries = 0
        self._not_before_ms = 0
        self._has_to_wait = False
        self._tried_ms = -(1 << 40)
        self._history_not_before_ms = 0
        self._has_urgent = False
        self._failures: dict[Identity, _Failures] = {}
        self._news = threading.Event()
        self.num_accepted = 0

    def wake(self, *, is_urgent: bool = False) -> None:
        """Wake the uplink for a waiting report. ``is_urgent``: an event, which shortens a pause between retries."""
        self._has_urgent = self._has_urgent or is_urgent
        self._news.set()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            pause_s = self.turn()
            if pause_s > 0:
                self._news.wait(min(pause_s, POLL_S))
                self._news.clear()

    def turn(self) -> float:
        """Send one report if one may be sent now. Return for how many seconds there is nothing to do."""
        now_ms = self._monotonic_ms()
        self._cut_pause_short(now_ms)
        if now_ms < self._not_before_ms:
            return (self._not_before_ms - now_ms) / 1000
        parcel = self._next(now_ms)
        if parcel is None:
            waits_ms = self._history_not_before_ms - now_ms
            return waits_ms / 1000 if waits_ms > 0 and self._has_history() else POLL_S
        self._tried_ms = now_ms
        outcome = self._sender.send(parcel.content)
        self._take(parcel, outcome)
        if parcel.is_history:
            self._pace_history(self._monotonic_ms() - now_ms)
        return 0.0

    def _cut_pause_short(self, now_ms: int) -> None:
        is_told_to_wait = self._has_to_wait and now_ms < self._not_before_ms
        if not self._has_urgent or is_told_to_wait:
            return
        if now_ms - self._tried_ms >= self._config.event_retry_ms or self._num_tries == 0:
            self._has_urgent = False
            self._not_before_ms = 0

    # --- next report

    def _next(self, now_ms: int) -> _Parcel | None:
        # The control plane decides by present state, so a long backlog must never delay it.
        return self._current() or self._live_event() or self._history(now_ms)

    def _current(self) -> _Parcel | None:
        newest = self._spool.newest_state()
        if newest is None or newest.boot_id != self._boot_id or newest.seq <= self._live_seq:
            return None
        if self._wall_ms() - newest.at_ms > self._config.current_for_ms:
            return None
        return self._parcel(newest, is_history=False)

    def _live_event(self) -> _Parcel | None:
        entry = self._spool.next_event(self._boot_id, self._live_seq)
        return None if entry is None else self._parcel(entry, is_history=False)

    def _history(self, now_ms: int) -> _Parcel | None:
        if now_ms < self._history_not_before_ms:
            return None
        gap = self._spool.gap_report(self._wall_ms())
        if gap is not None:
            return _Parcel((gap.boot_id, gap.seq), msgspec.json.encode(gap), is_history=True)
        while (entry := self._spool.oldest()) is not None:
            parcel = self._parcel(entry, is_history=True)
            if parcel is not None:
                return parcel
        return None

    def _has_history(self) -> bool:
        return self._spool.oldest() is not None or self._spool.gap_report(self._wall_ms()) is not None

    def _parcel(self, entry: Entry, *, is_history: bool) -> _Parcel | None:
        """Return the parcel, None: the report cannot be read; the spool has counted that, and it no longer waits."""
        content = self._spool.content_of(entry)
        if content is None:
            return None
        return _Parcel(entry.identity, _as_history(content) if is_history else content, is_history)

    # --- outcome

    def _take(self, parcel: _Parcel, outcome: Outcome) -> None:
        match outcome:
            case Accepted():
                self._accept(parcel, outcome)
            case Refused():
                self._spool.set_aside(parcel.identity, parcel.content, outcome.reason)
                self._note_sent(parcel)
            case Later():
                self._postpone(parcel, outcome)

    def _accept(self, parcel: _Parcel, outcome: Accepted) -> None:
        if self._num_tries:
            _log.info("control_plane_takes_reports_again", after_tries=self._num_tries)
        self._spool.acknowledge(parcel.identity)
        self._failures.pop(parcel.identity, None)
        self.num_accepted += 1
        self._note_sent(parcel)
        if not parcel.is_history:
            self.on_interval(outcome.interval_s)

    def _note_sent(self, parcel: _Parcel) -> None:
        """End the pause: the server answered, whatever the answer."""
        self._num_tries = 0
        self._not_before_ms = 0
        self._has_to_wait = False
        if not parcel.is_history:
            self._live_seq = max(self._live_seq, parcel.identity[1])

    def _postpone(self, parcel: _Parcel, outcome: Later) -> None:
        if outcome.is_failure and self._fails_alone(parcel):
            self._spool.set_aside(parcel.identity, parcel.content, f"the server fails on it: {outcome.why}")
            self._failures.pop(parcel.identity, None)
        if not self._num_tries:
            _log.warning("report_waits", seq=parcel.identity[1], why=outcome.why, retry_after_s=outcome.retry_after_s)
        wait_ms = self._retry_ms(is_for_long=outcome.is_for_long)
        asked_ms = 0 if outcome.retry_after_s is None else round(outcome.retry_after_s * 1000)
        self._has_to_wait = asked_ms > 0
        # The fleet gets the same number of seconds: the jitter is added to it.
        self._not_before_ms = self._monotonic_ms() + asked_ms + wait_ms
        self._num_tries += 1

    def _fails_alone(self, parcel: _Parcel) -> bool:
        known = self._failures.setdefault(parcel.identity, _Failures(self.num_accepted))
        known.count += 1
        return known.count >= FAILURES_TO_SET_ASIDE and self.num_accepted > known.accepted_before

    def _retry_ms(self, *, is_for_long: bool) -> int:
        cap_ms = self._config.retry_cap_ms
        if is_for_long:
            return round(self._rng.uniform(cap_ms / 2, cap_ms))
        return round(self._rng.uniform(0, min(cap_ms, self._config.retry_base_ms << min(self._num_tries, 16))))

    def _pace_history(self, took_ms: int) -> None:
        share = self._config.history_share
        rest_ms = max(took_ms * (1 - share) / share, 1000 / self._config.history_per_s - took_ms)
        self._history_not_before_ms = self._monotonic_ms() + round(rest_ms)


def _as_history(content: bytes) -> bytes:
    report = msgspec.json.decode(content, type=Report)
    return msgspec.json.encode(msgspec.structs.replace(report, is_history=True))
