"""Group commit: reports that arrive within milliseconds of each other are one transaction, answered after its commit.

One thread has one connection. A report waits for its group and for the disk, and for nothing else. If the database does
not answer, the report is refused for now and its agent keeps it. With the default ``pause_s`` of 20 ms:

    ms        0     7     15        20               26
    reports   r1    r2    r3        |     r4         |
    flusher   the pause begins      commit r1 r2 r3  answers to r1 r2 r3; the pause of r4's group begins

A catch-up after an outage is cut into groups of at most twice ``group_rows`` rows. A group that cannot be stored is
tried again report by report, so that one report's fault is not another's.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from msgspec import Struct
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from control.fleet.gpu_claims import GpuClaimedError, report_claim
from control.telemetry.flush import accept, flush
from control.telemetry.judging import SampleJudge
from control.telemetry.reports import AcceptedReport, IncomingReport, OnFlushed, Outcome
from control.telemetry.unreadable import UnreadableReadings
from muster.db.errors import sqlstate, translated_errors, translation_of
from muster.db.pipeline.packed_arrays import register
from muster.domain.errors import InternalError, MusterError, RateLimitedError, UnavailableError, ValidationFailedError
from muster.domain.principals import system_principal
from muster.failpoints import failpoint
from muster.progress import Progress, bound

FLUSH: Final = declare_action("telemetry.flush")

TELEMETRY: Final = system_principal("telemetry")
CLAIM_REPORTED_S: Final = 600.0
"""Time until one host's claim of another's GPUs is reported again: its agent reports every few seconds."""

Deliver = Callable[[Outcome], None]
Claim = tuple[str, tuple[str, ...]]
"""The node that claims, and the GPUs."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Limits. A group is closed after ``pause_s`` or at ``group_rows`` GPUs and events.

    The number of waiting reports is limited, for a node and in all.
    """

    pause_s: float = 0.02
    group_rows: int = 2_048
    waiting_reports: int = 4_096
    waiting_per_node: int = 8


class _Waiting(Struct, frozen=True):
    incoming: IncomingReport
    deliver: Deliver
    num_rows: int


class Intake:
    """Entrance of reports: ``submit`` from any thread.

    Outcomes are delivered in the flusher's thread, after the commit.

    Samples are judged in the group's own transaction (``judging``). ``on_flushed`` is called for each group after its
    commit; ``wake`` is set after each commit that brought signals.
    """

    def __init__(
        self, units: UnitOfWorkFactory, *, limits: IntakeLimits | None = None, on_flushed: OnFlushed | None = None
    ) -> None:
        self.wake = threading.Event()
        self.num_reports = 0
        self.num_duplicates = 0
        self.num_groups = 0
        self.num_unknown_gpus = 0
        self.num_unknown_kinds = 0
        self._units = units
        self._limits = limits or IntakeLimits()
        self._on_flushed = on_flushed
        self._claims_reported: dict[Claim, float] = {}
        self.unreadable = UnreadableReadings(units, TELEMETRY)
        self.judge = SampleJudge()
        self._news = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._num_rows = 0
        self._per_node: Counter[str] = Counter()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self.progress = Progress("ingest")
        self.progress.rest(math.inf)  # until the first report starts the flusher's thread

    def is_alive(self) -> bool:
        """Return whether reports are stored: by the flusher's thread, which starts with the first of them."""
        return self._thread is None or self._thread.is_alive() or self._is_stopping

    # --- arriving reports

    def submit(self, incoming: IncomingReport, deliver: Deliver) -> None:
        """Put a report into the next group.

        Raises:
            RateLimitedError: this node has as many reports in progress as it may.
            UnavailableError: more reports wait than the database takes, or the process is ending.
        """
        report, node_id = incoming.report, incoming.node_id
        one = _Waiting(incoming, deliver, max(1, len(report.gpus) + len(report.events)))
        with self._news:
            if self._is_stopping or len(self._waiting) >= self._limits.waiting_reports:
                raise UnavailableError("more telemetry waits than can be stored now", retry_after_s=2)
            of_node = self._per_node.get(node_id, 0)
            if of_node >= self._limits.waiting_per_node:
                raise RateLimitedError("this node has too many reports in progress", retry_after_s=1)
            self._per_node[node_id] = of_node + 1
            was_empty = not self._waiting
            self._waiting.append(one)
            self._num_rows += one.num_rows
            if was_empty or self._num_rows >= self._limits.group_rows:
                self._news.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread after it has stored and answered the waiting reports."""
        with self._news:
            self._is_stopping = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join(10)

    # --- the flusher's thread

    def _run(self) -> None:
        with bound(self.progress):
            while True:
                self.progress.rest(math.inf)
                group = self._next_group()
                self.progress.advance()
                if not group:
                    self._drop_connection()
                    return
                self._take(group)

    def _next_group(self) -> list[_Waiting]:
        """Return the waiting reports as a group; empty only at the end."""
        with self._news:
            while not self._waiting and not self._is_stopping:
                self._news.wait()
            # Counted from the group's first report: a lone report waits no longer, and a full group does not wait.
            closes_at = time.monotonic() + self._limits.pause_s
            while self._num_rows < self._limits.group_rows and not self._is_stopping:
                rest_s = closes_at - time.monotonic()
                if rest_s <= 0:
                    break
                self._news.wait(rest_s)
            return self._cut()

    def _cut(self) -> list[_Waiting]:
        """Return at most twice a group's rows: a catch-up after an outage must not grow one statement without end."""
        num_rows, count = 0, 0
        for one in self._waiting:
            if count and num_rows + one.num_rows > 2 * self._limits.group_rows:
                break
            num_rows, count = num_rows + one.num_rows, count + 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        self._num_rows -= num_rows
        return group

    def _take(self, group: list[_Waiting]) -> None:
        outcomes, has_signals = self._store(group)
        # Before the answers: an agent may send its next report at once, which must not count as one too many.
        with self._news:
            self._per_node.subtract(one.incoming.node_id for one in group)
            self._per_node += Counter()
        for one, outcome in zip(group, outcomes, strict=True):
            one.deliver(outcome)
        accepted = [outcome for outcome in outcomes if isinstance(outcome, AcceptedReport)]
        self._count(outcomes, accepted)
        if has_signals:
            self.wake.set()
        self._report(accepted)
        self._report_claims(group, outcomes)
        stored = (isinstance(outcome, AcceptedReport) for outcome in outcomes)
        self.unreadable.report(one.incoming for one, is_stored in zip(group, stored, strict=True) if is_stored)

    def _count(self, outcomes: list[Outcome], accepted: list[AcceptedReport]) -> None:
        self.num_groups += 1
        self.num_reports += len(accepted)
        self.num_duplicates += sum(1 for outcome in outcomes if not isinstance(outcome, AcceptedReport | MusterError))
        self.num_unknown_gpus += sum(len(outcome.unknown_gpus) for outcome in accepted)

    def _report_claims(self, group: list[_Waiting], outcomes: list[Outcome]) -> None:
        """Report claims after the commit and the answers.

        A claim that continues is reported again after ``CLAIM_REPORTED_S``.
        """
        for one, outcome in zip(group, outcomes, strict=True):
            if not isinstance(outcome, GpuClaimedError):
                continue
            claim, now_s = (one.incoming.node_id, outcome.gpu_uuids), time.monotonic()
            if now_s - self._claims_reported.get(claim, -CLAIM_REPORTED_S) < CLAIM_REPORTED_S:
                continue
            try:
                report_claim(self._units, TELEMETRY, outcome, one.incoming.node_id)
            except Exception:  # noqa: BLE001  # a failed report of a claim must never stop storage
                _log.exception("gpu_claim_not_told", node_id=one.incoming.node_id, gpu_uuids=outcome.gpu_uuids)
            else:
                self._claims_reported = {claim: now_s, **self._claims_still_reported(now_s)}

    def _claims_still_reported(self, now_s: float) -> dict[Claim, float]:
        return {claim: told_s for claim, told_s in self._claims_reported.items() if now_s - told_s < CLAIM_REPORTED_S}

    def _report(self, accepted: list[AcceptedReport]) -> None:
        if self._on_flushed is None or not accepted:
            return
        try:
            self._on_flushed(accepted)
        except Exception:  # noqa: BLE001  # a failed hook must never stop storage
            _log.exception("telemetry_hook_failed", reports=len(accepted))

    def _store(self, group: list[_Waiting]) -> tuple[list[Outcome], bool]:
        """Commit the group: again on a fresh connection where it was lost; one by one where one cannot be stored."""
        try:
            try:
                return self._commit(group)
            except UnavailableError:
                self._drop_connection()
                return self._commit(group)
        except UnavailableError as error:
            self._drop_connection()
            _log.warning("telemetry_not_stored", reports=len(group), fault=error.detail)
            return [UnavailableError(retry_after_s=2)] * len(group), False
        except Exception as error:  # noqa: BLE001  # the thread's edge: one report's fault is no other's
            self._drop_connection()
            if len(group) > 1:
                parts = [self._store([one]) for one in group]
                return [outcome for outcomes, _ in parts for outcome in outcomes], any(has for _, has in parts)
            _log.exception("telemetry_failed", node_id=group[0].incoming.node_id)
            return [_fault_of(error)], False

    def _commit(self, group: list[_Waiting]) -> tuple[list[Outcome], bool]:
        with translated_errors():
            self.judge.read_policy(self._units)
            connection = self._connected()
            with connection.begin():
                found = flush(connection, [one.incoming for one in group], self._units.clock(), self.judge)
                failpoint(f"{FLUSH}.before_commit")
        failpoint(f"{FLUSH}.after_commit")
        self.num_unknown_kinds += found.num_unknown_kinds
        return accept(found, self.judge), found.num_signals > 0

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._units.engine.connect()
            driver = self._connection.connection.driver_connection
            if driver is None:
                raise UnavailableError(retry_after_s=2)
            register(driver)
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.invalidate()
            connection.close()
        except Exception as error:  # noqa: BLE001  # the connection is unusable in any case
            translation = translation_of(error)
            _log.warning("telemetry_connection_lost", fault=str(translation or error))


def _fault_of(error: Exception) -> MusterError:
    """Return the report's fault for data that the database refuses; any other failure is our own."""
    if isinstance(error, DBAPIError) and (sqlstate(error) or "").startswith("22"):
        return ValidationFailedError("a value of this report cannot be stored")
    return InternalError()
