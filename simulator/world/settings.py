"""The settings of a world, drawn from its seed: calm or brutal, small or large, with real or with scaled timers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import DEFAULT_POLICY
from simulator.world.failpoints import FAILPOINTS

_REAL_TIMERS: Final = Timers.of(DEFAULT_POLICY)
MAX_WALL_BEATS: Final = 150
LARGEST_GANG: Final = 3
LARGEST_PART: Final = 4
FAULT_KINDS: Final = (
    "kill_launcher", "reboot", "cut_one_way", "cut_both_ways", "drop_server", "flip_admission", "cancel",
    "stop_attempt", "reclaim", "resize", "jump_clock", "storm",
)  # fmt: skip
_SCALED_FIELDS: Final = tuple(name for name in Timers.__dataclass_fields__ if name.endswith("_ms"))


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one world.

    ``crash_rate``: of every failpoint of the launchers; ``fault_gap_ms``: the mean time between two faults.
    ``crash_rates``: of the control plane's failpoints, by name; ``fault_weights``: the weight of each kind of fault, 0
    if this world has none of it. ``has_broker``: without one no wake-up arrives (I20). ``ceiling_gpus``: the most GPUs
    of a tenant at once. ``old_rate``: the share of hosts that start as they are granted; ``unready_rate``: of
    preparations that find something missing; ``checks_single``: a host alone prepares too.
    """

    timers: Timers
    num_hosts: int
    gpus_per_host: int
    num_jobs: int
    loss: float
    duplication: float
    min_delay_ms: int
    tail_delay_ms: int
    crash_rate: float
    crash_rates: Mapping[str, float]
    fault_weights: Mapping[str, float]
    has_broker: bool
    fault_gap_ms: int
    drift_ppm: float
    horizon_ms: int
    turn_ms: int
    reconcile_ms: int
    old_rate: float
    unready_rate: float
    checks_single: bool
    ceiling_gpus: int

    @property
    def settle_ms(self) -> int:
        """The liveness bound: how long after the last fault everything may take to end and be clean."""
        timers = self.timers
        starting_ms = timers.place_again_ms + timers.ready_within_ms
        one_try_ms = timers.server_lease_ms + starting_ms + timers.retry_backoff_max_ms
        programs_ms = self.num_jobs * 2 * MAX_WALL_BEATS * timers.heartbeat_ms
        return timers.no_expiry_after_start_ms + 12 * one_try_ms + programs_ms


def draw_settings(rng: Random, scale: float | None = None) -> Settings:
    """Return the settings.

    Without a ``scale`` one in eight keeps the policy's own timers; the others are ten times faster.
    """
    scale = scale or (1.0 if rng.random() < 0.125 else 0.1)
    timers = scaled_timers(scale)
    if scale != 1.0:  # leases short enough for faults to end them
        lease_ms = rng.choice((12_000, 20_000, 90_000))
        extra_ms = timers.server_lease_ms - timers.agent_lease_ms
        timers = replace(
            timers,
            agent_lease_ms=lease_ms,
            server_lease_ms=lease_ms + extra_ms,
            no_expiry_after_start_ms=rng.choice((5_000, 30_000)),
        )
    fury = rng.random() if rng.random() < 0.85 else 0.0
    heartbeat_ms = timers.heartbeat_ms
    num_hosts, gpus_per_host = rng.randint(2, 5), rng.randint(1, 4)
    return Settings(
        timers=timers,
        num_hosts=num_hosts,
        gpus_per_host=gpus_per_host,
        num_jobs=rng.randint(4, 8),
        loss=fury * rng.choice((0.0, 0.02, 0.1, 0.3)),
        duplication=fury * rng.choice((0.0, 0.05, 0.3)),
        min_delay_ms=rng.randint(1, 20),
        tail_delay_ms=int(heartbeat_ms * rng.choice((0.02, 0.2, 2.0, 8.0, 30.0)) * (0.1 + fury)),
        crash_rate=fury * rng.choice((0.0, 0.005, 0.02, 0.08)),
        crash_rates=_crash_rates(rng, fury * rng.choice((0.0, 0.005, 0.02, 0.08))),
        fault_weights=_swarm(rng),
        has_broker=rng.random() < 0.85,
        fault_gap_ms=int(heartbeat_ms * rng.choice((2, 6, 20)) / (0.1 + fury)),
        drift_ppm=rng.choice((0.0, 50.0, 200.0)),
        horizon_ms=heartbeat_ms * rng.choice((150, 250, 400)),
        turn_ms=heartbeat_ms // 2,
        reconcile_ms=heartbeat_ms,
        old_rate=rng.choice((0.0, 0.0, 0.3)),
        unready_rate=rng.choice((0.0, 0.05, 0.2)),
        checks_single=rng.random() < 0.3,
        ceiling_gpus=LARGEST_GANG * min(LARGEST_PART, gpus_per_host) if rng.random() < 0.5 else 1 << 30,
    )


def _swarm(rng: Random) -> dict[str, float]:
    """Return weights of faults: each kind is on or off in a world, since all at once would hide some of them."""
    weights = {kind: rng.random() ** 2 if rng.random() < 0.6 else 0.0 for kind in FAULT_KINDS}
    return weights if any(weights.values()) else dict.fromkeys(FAULT_KINDS, 1.0)


def _crash_rates(rng: Random, rate: float) -> dict[str, float]:
    """Return rates for all failpoints in every other world, else higher ones for a few."""
    points = FAILPOINTS if rng.random() < 0.5 else rng.sample(FAILPOINTS, rng.randint(1, 6))
    return dict.fromkeys(points, min(0.5, rate * len(FAILPOINTS) / len(points)))


def scaled_timers(scale: float) -> Timers:
    numbers = {name: round(getattr(_REAL_TIMERS, name) * scale) for name in _SCALED_FIELDS}
    return replace(_REAL_TIMERS, **numbers)
