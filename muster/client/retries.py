"""The rules by which a call is sent again, or not at all: no I/O, no clock of its own.

Three rules protect a server that is down or full. A call pauses before each repetition, with full jitter and never less
than Retry-After says, and ends with its budget of time. All calls of one client share an allowance: a repetition takes
one, a success gives an eighth back, so that repetitions stay a small part of all requests. A server that has not
answered ``FAILURES_TO_OPEN`` times in a row gets no calls for a while: they fail at once, and then one tries it again.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from muster.client.transport import Problem, UnreachableError

PAUSE_BASE_S: Final = 0.2
PAUSE_CAP_S: Final = 30.0
CALL_BUDGET_S: Final = 20.0
UNREACHABLE_TRIES: Final = 4
ALLOWANCE: Final = 20.0
ALLOWANCE_BACK: Final = 0.125
FAILURES_TO_OPEN: Final = 8
CLOSED_FOR_S: Final = 0.5
CLOSED_FOR_CAP_S: Final = 5.0
_REPEATED_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504})
_REPEATED_CODES: Final = frozenset({"request_in_flight"})

RetryFault = UnreachableError | Problem


@dataclass(slots=True)
class RetryPolicy:
    """The state of ``server`` that all calls of one client share. ``clock``: seconds that only grow."""

    server: str
    clock: Callable[[], float]
    rng: random.Random = field(default_factory=random.SystemRandom)
    _allowance: float = ALLOWANCE
    _num_silent: int = 0
    _shut_for_s: float = 0.0
    _shut_until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, *, is_repeatable: bool) -> "Retries":
        """Begin a call that is about to be sent.

        Raises:
            UnreachableError: the server has been silent too often; no call is sent yet.
        """
        now = self.clock()
        with self._lock:
            if self._num_silent >= FAILURES_TO_OPEN:
                if now < self._shut_until:
                    left_s = self._shut_until - now
                    message = (
                        f"{self.server} has not answered {self._num_silent} times; it is asked again in {left_s:.1f} s"
                    )
                    raise UnreachableError(message)
                # This call tries the server for all calls; others are refused until its result is known.
                self._shut_until = now + self._shut_for_s
        return Retries(self, now + CALL_BUDGET_S, is_repeatable=is_repeatable)

    def note_answer(self) -> None:
        """Note that the server answered, whatever the answer was."""
        with self._lock:
            self._num_silent, self._shut_for_s = 0, 0.0

    def note_success(self) -> None:
        with self._lock:
            self._allowance = min(ALLOWANCE, self._allowance + ALLOWANCE_BACK)

    def note_silence(self) -> None:
        with self._lock:
            self._num_silent += 1
            if self._num_silent >= FAILURES_TO_OPEN:
                self._shut_for_s = min(CLOSED_FOR_CAP_S, max(CLOSED_FOR_S, self._shut_for_s * 2))
                self._shut_until = self.clock() + self._shut_for_s

    def take_repetition(self) -> bool:
        with self._lock:
            if self._allowance < 1:
                return False
            self._allowance -= 1
            return True

    def pause_s(self, num_tries: int) -> float:
        """Full jitter: anything up to the base doubled with each try."""
        return self.rng.uniform(0, min(PAUSE_CAP_S, PAUSE_BASE_S * 2**num_tries))


@dataclass(slots=True)
class Retries:
    """The tries of one call."""

    policy: RetryPolicy
    deadline: float
    is_repeatable: bool
    num: int = 0

    def succeeded(self) -> None:
        self.policy.note_answer()
        self.policy.note_success()

    def pause_after(self, fault: RetryFault) -> float:
        """Seconds to wait before the next try. Raises ``fault`` when there is to be none."""
        self.num += 1
        self._note(fault)
        pause_s = self.policy.pause_s(self.num)
        if isinstance(fault, Problem) and fault.retry_after_s is not None:
            pause_s = fault.retry_after_s + min(pause_s, PAUSE_BASE_S)
        if not self.is_repeatable or not self._may_be_cured(fault):
            raise fault
        if self.policy.clock() + pause_s > self.deadline or not self.policy.take_repetition():
            raise fault
        return pause_s

    def _note(self, fault: RetryFault) -> None:
        if isinstance(fault, UnreachableError):
            self.policy.note_silence()
        else:
            self.policy.note_answer()

    def _may_be_cured(self, fault: RetryFault) -> bool:
        if isinstance(fault, UnreachableError):
            return self.num < UNREACHABLE_TRIES
        return fault.status in _REPEATED_STATUSES or fault.code in _REPEATED_CODES
