"""Renewal of a build's claim, while it is built."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from muster.wire.content import EnvironmentAnswer
from workers.host.content.fetch_order import EnvironmentKey

Renew = Callable[[EnvironmentKey], EnvironmentAnswer | None]
"""Asks once; None: there was no answer."""


class Claim(threading.Thread):
    """``is_lost``: another part has the build by now."""

    def __init__(self, renew: Renew, key: EnvironmentKey, lease_s: float) -> None:
        super().__init__(daemon=True)
        self.is_lost = threading.Event()
        self._renew = renew
        self._key = key
        self._pause_s = max(1.0, lease_s / 4)
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(self._pause_s):
            answer = self._renew(self._key)
            if answer is not None and answer.state != "build" and not self._is_over.is_set():
                self.is_lost.set()
                return

    def stop(self) -> None:
        self._is_over.set()


@contextlib.contextmanager
def renewed(renew: Renew, key: EnvironmentKey, lease_s: float) -> Iterator[Claim]:
    """Renew the claim of the build meanwhile."""
    claim = Claim(renew, key, lease_s)
    claim.start()
    try:
        yield claim
    finally:
        claim.stop()
