"""Which calls to Vault may begin: a slow or silent one holds a few threads of the API, and the others are refused.

A refusal says when to try again. After no answer there is a pause, and then one call tries it for all.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Final

from muster.domain.errors import SecretKeyError

MOST_AT_ONCE: Final = 8
"""Calls of one process at once."""
WAIT_S: Final = 0.25
"""Another one waits so long for a place, and none does once they were busy for longer than that."""
PAUSE_S: Final = 2.0
"""After no answer for a call, no other one is made for so long."""
_AGAIN_S: Final = 1


class Circuit:
    """Any thread may use it. ``monotonic``: the clock of the pause."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._are_busy = False
        self._lock = threading.Lock()
        self._silence: tuple[float, str] | None = None
        self._is_tried = False

    @contextlib.contextmanager
    def call(self) -> Iterator[Callable[[str], SecretKeyError]]:
        """Yield a function that the call's failure goes to, by its text; it returns the error to raise.

        Raises:
            SecretKeyError: no call may begin now.
        """
        with self._place():
            is_trial = self._begun()
            found: tuple[float, str] | None = None

            def failed(words: str) -> SecretKeyError:
                nonlocal found
                found = (self._monotonic() + PAUSE_S, words)
                return SecretKeyError(words, retry_after_s=math.ceil(PAUSE_S))

            try:
                yield failed
            finally:
                with self._lock:
                    self._silence = found
                    self._is_tried = self._is_tried and not is_trial

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(timeout=0 if self._are_busy else WAIT_S):
            self._are_busy = True
            words = f"Vault is slow: {MOST_AT_ONCE} calls wait for it already"
            raise SecretKeyError(words, retry_after_s=_AGAIN_S)
        try:
            yield
        finally:
            self._are_busy = False
            self._places.release()

    def _begun(self) -> bool:
        """Return whether this is the call that tries it after a pause. Raises SecretKeyError."""
        with self._lock:
            if self._silence is None:
                return False
            until_s, words = self._silence
            left_s = until_s - self._monotonic()
            if left_s > 0 or self._is_tried:
                raise SecretKeyError(words, retry_after_s=max(_AGAIN_S, math.ceil(left_s)))
            self._is_tried = True
            return True
