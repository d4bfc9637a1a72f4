"""A host's two clocks: one counts from its boot, at its own rate; the other is the time of day, which can be set."""

from typing import Final

from simulator.world.kernel import Kernel

WALL_START_MS: Final = 1_790_000_000_000
"""The time of day at which a world begins, in milliseconds since 1970."""


class HostClock:
    """The clocks of one host. ``rate``: its own milliseconds in true ones. ``counts_by_wall``: a planted bug."""

    __slots__ = ("_booted_ms", "_counts_by_wall", "_kernel", "_rate", "_skew_ms")

    def __init__(self, kernel: Kernel, rate: float, *, counts_by_wall: bool) -> None:
        self._kernel, self._rate, self._counts_by_wall = kernel, rate, counts_by_wall
        self._booted_ms = self._skew_ms = 0

    def boot(self) -> None:
        self._booted_ms = self._kernel.now_ms

    def since_boot(self) -> int:
        """Return the milliseconds since the boot, by a clock that never jumps."""
        return 1 + int((self._kernel.now_ms - self._booted_ms) * self._rate)

    def delay_until(self, clock_ms: int) -> int:
        return max(1, 1 + int((clock_ms - self.since_boot()) / self._rate))

    def wall(self) -> int:
        """Return the time of day by the host's clock, in milliseconds since 1970."""
        return WALL_START_MS + self._kernel.now_ms + self._skew_ms

    def jump(self, by_ms: int) -> None:
        """Set the time of day forward or back. Leases do not count by it."""
        self._skew_ms += by_ms
        if self._counts_by_wall:
            self._booted_ms -= by_ms
