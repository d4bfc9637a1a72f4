"""How often it is tried to prove that nothing of an attempt or a look is left on its host."""

from dataclasses import dataclass
from typing import Final

from workers.host.attempt_folder import boottime_ms

PROVE_SOON_MS: Final = 100
"""While the supervisor is still at its own proof."""
SOON_ENDS_MS: Final = 3_000
PROVE_AGAIN_MS: Final = 5_000


@dataclass(slots=True)
class ProofTries:
    """Of one place."""

    first_ms: int
    next_ms: int = 0
    is_said: bool = False

    @property
    def are_due(self) -> bool:
        return boottime_ms() >= self.next_ms

    def wait(self) -> int:
        """Until the next one, after one in vain. For how many milliseconds it has been tried."""
        tried_for_ms = boottime_ms() - self.first_ms
        self.next_ms = boottime_ms() + (PROVE_SOON_MS if tried_for_ms < SOON_ENDS_MS else PROVE_AGAIN_MS)
        return tried_for_ms
