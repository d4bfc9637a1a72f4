"""Times of the tries to prove that nothing of an attempt or a preflight is left on its host."""

from dataclasses import dataclass
from typing import Final

from workers.host.attempt_folder import boottime_ms

PROVE_SOON_MS: Final = 100
"""Pause while the supervisor still works on its own proof."""
SOON_ENDS_MS: Final = 3_000
PROVE_AGAIN_MS: Final = 5_000


@dataclass(slots=True)
class ProofTries:
    """Tries of one attempt or preflight."""

    first_ms: int
    next_ms: int = 0
    is_reported: bool = False

    @property
    def are_due(self) -> bool:
        return boottime_ms() >= self.next_ms

    def wait(self) -> int:
        """Set the next try after a failed one, and return for how many milliseconds it has been tried."""
        tried_for_ms = boottime_ms() - self.first_ms
        self.next_ms = boottime_ms() + (PROVE_SOON_MS if tried_for_ms < SOON_ENDS_MS else PROVE_AGAIN_MS)
        return tried_for_ms
