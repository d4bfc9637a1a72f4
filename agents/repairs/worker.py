"""The agent's repair loop: asks for an order, does it if this host allows it, reports until the server has it."""

import random
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import structlog

from agents import host_facts
from agents.probes.interface import GpuIdentity, Probe, ProbeError
from agents.repairs.actions import AllowedRepairs, HandsError
from agents.repairs.journal import Given, Journal
from muster.client.transport import Problem, UnreachableError
from muster.domain.evidence.repairs import HOST_SCOPE, RepairVerb
from muster.domain.gpu.metrics import value_of
from muster.domain.ids import GpuUuid
from muster.wire.repair import REPAIR_PROTOCOL, RepairAnswer, RepairOrder, RepairPoll, RepairPollAnswer, RepairReport

AWAY_S: Final = 10.0
JITTER: Final = 0.1
REPORTS_S: Final = 30.0
"""The part of a verb's time that is left for its report."""
GOES_DOWN_S: Final = 300.0
"""Longest time that a host may take to go down for a reboot."""
_WORDS_MAX: Final = 1000
_REPEATED: Final = frozenset({401, 403, 408, 425, 429})
_log = structlog.get_logger(__name__)


class RepairServer(Protocol):
    """Calls to the server, each of which raises ``UnreachableError`` or ``Problem``."""

    def poll(self, request: RepairPoll) -> RepairPollAnswer: ...

    def report(self, repair_id: str, report: RepairReport) -> RepairAnswer: ...


class RepairWorker:
    """State of the loop. ``turn_taking``: locked during a verb or burn-in."""

    def __init__(
        self,
        server: RepairServer,
        probe: Probe,
        repairs: AllowedRepairs,
        journal: Journal,
        boot_id: str,
        *,
        rng: random.Random,
        turn_taking: "threading.Lock | None" = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._probe = probe
        self._hands = repairs.hands
        self._journal = journal
        self._boot_id = boot_id
        self._allowed = repairs.verbs
        self._rng = rng
        self._turn_taking = turn_taking or threading.Lock()
        self._now_s = now_s
        self._report_at_s: dict[str, float] = {}

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            stop.wait(self.turn(stop) * self._rng.uniform(1 - JITTER, 1 + JITTER))

    def turn(self, stop: threading.Event) -> float:
        """Report an ended order, else ask for one and do it. Return the seconds until the next turn."""
        try:
            held = self._journal.read()
            due = next((each for each in held if self._report_in_s(each) <= 0), None)
            if due is not None:
                return self._report(due.settled(self._boot_id))
            if not self._turn_taking.acquire(timeout=1.0):
                return 0.0  # a burn-in runs
            try:
                ask_in_s = self._ask(held, stop)
            finally:
                self._turn_taking.release()
            return min([ask_in_s, *map(self._report_in_s, held)])
        except (OSError, ProbeError, UnreachableError, Problem) as fault:
            _log.debug("repair_waits", fault=str(fault))
            return AWAY_S

    def _report_in_s(self, given: Given) -> float:
        """Return the seconds until the report is due; 0 or less: now."""
        return self._report_at_s.get(given.repair_id, 0.0) - self._now_s()

    def _ask(self, stored: tuple[Given, ...], stop: threading.Event) -> float:
        """Ask for an order and do it. ``stored``: orders that have ended and wait for their report."""
        waiting = tuple(each.repair_id for each in stored)
        verbs = tuple(sorted(self._allowed))
        asked = RepairPoll(protocol=REPAIR_PROTOCOL, boot_id=self._boot_id, waiting=waiting, verbs=verbs)
        answer = self._server.poll(asked)
        order = answer.order
        if order is None:
            return answer.poll_again_s
        given = Given(repair_id=order.repair_id, gpu_uuid=order.gpu_uuid, verb=order.verb, boot_id=self._boot_id)
        self._journal.write(given)
        _log.warning("repair_began", gpu_uuid=order.gpu_uuid, repair_id=order.repair_id, verb=order.verb)
        try:
            words = self._do(order, stop)
        except (HandsError, ProbeError) as fault:
            if stop.is_set():
                return 0.0  # the next process reports: after a reboot its boot is another one
            given = msgspec.structs.replace(given, outcome="failed", words=str(fault))
        else:
            if order.verb == RepairVerb.REBOOT and not self._hands.is_simulated:
                stop.wait(GOES_DOWN_S)
                if stop.is_set():
                    return 0.0  # the process in the next boot reports
                given = msgspec.structs.replace(given, outcome="failed", words=f"{words}; the host did not go down")
            else:
                given = msgspec.structs.replace(given, outcome="done", words=words)
        self._journal.write(given)
        return 0.0

    def _do(self, order: RepairOrder, stop: threading.Event) -> str:
        """Do the order and return a text. Raises HandsError: this host does not do it, or it failed."""
        verb = next((each for each in RepairVerb if each == order.verb), None)
        if verb is None or verb not in self._allowed:
            allowed = ", ".join(sorted(self._allowed)) or "none"
            raise HandsError(f"this host does not allow {order.verb}; its MUSTER_REPAIR_VERBS: {allowed}")
        inventory = self._probe.identify()
        gpu = next((each for each in inventory.gpus if each.uuid == order.gpu_uuid), None)
        if gpu is None:
            gpu = self._silent(order)
        self._require_idle(verb, gpu)
        return self._hands.do(verb, gpu, max(1.0, order.deadline_s - REPORTS_S), stop)

    def _silent(self, order: RepairOrder) -> GpuIdentity:
        """Return a GPU that the driver no longer lists: a verb for the whole host may bring it back."""
        if order.verb not in HOST_SCOPE:
            raise HandsError(f"the driver does not list {order.gpu_uuid}")
        return GpuIdentity(uuid=GpuUuid(order.gpu_uuid), index=0)

    def _require_idle(self, verb: RepairVerb, gpu: GpuIdentity) -> None:
        """Check that no program computes on the verb's GPUs. On simulated GPUs none does."""
        if self._hands.is_simulated:
            return
        for check in self._probe.check(host_facts.wall_ms()):
            if verb in HOST_SCOPE or check.gpu_uuid == gpu.uuid:
                num_processes = value_of(check.values, "num_processes") if check.values else None
                if num_processes is None and check.gpu_uuid != gpu.uuid:
                    raise HandsError(f"it is unknown whether a program computes on {check.gpu_uuid}")
                if num_processes:
                    raise HandsError(f"{num_processes:.0f} processes compute on {check.gpu_uuid}")

    def _report(self, given: Given) -> float:
        """Report until the server has it, or has no use for it."""
        report = RepairReport(
            protocol=REPAIR_PROTOCOL,
            boot_id=self._boot_id,
            outcome=given.outcome or "failed",
            text=_printable(given.words),
            is_simulated=self._hands.is_simulated,
        )
        try:
            answer = self._server.report(given.repair_id, report)
        except Problem as problem:
            if problem.status >= 500 or problem.status in _REPEATED:
                raise
            _log.error("repair_report_refused", repair_id=given.repair_id, fault=str(problem))
            self._forget(given)
            return 0.0
        if answer.again_s is not None:
            self._journal.write(given)
            self._report_at_s[given.repair_id] = self._now_s() + answer.again_s
            return 0.0
        self._forget(given)
        _log.info("repair_reported", repair_id=given.repair_id, outcome=given.outcome, is_taken=answer.is_taken)
        return 0.0

    def _forget(self, given: Given) -> None:
        self._journal.forget(given.repair_id)
        self._report_at_s.pop(given.repair_id, None)


def _printable(words: str) -> str:
    return "".join(each if each.isprintable() else " " for each in words)[:_WORDS_MAX].strip() or "it gave no reason"
