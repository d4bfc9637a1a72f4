"""The suites of benchmarks by name: which modules make the figures of `results/NAME.json`."""

from collections.abc import Mapping
from typing import Final

SUITES: Final[Mapping[str, tuple[str, ...]]] = {
    "main": ("simulation", "wakeups", "launches"),
    "setup": ("from_scratch",),
    "placement": ("placement", "commit"),
    "scheduler": (
        "placement",
        "decisions",
        "answers",
        "snapshot",
        "tenant_limits",
        "commit",
        "queue_rules",
        "queue_breadth",
        "queue_shapes",
        "start_ranges",
        "fragmentation",
    ),
    "judgement": ("judgement",),
    "health": ("health", "health_storm"),
    "ingest": ("ingest", "retention"),
    "ledger": ("ledger_hours", "ledger_month", "ledger_truth", "ledger_crashes", "ledger_bills", "burn_rates"),
    "host": ("host",),
    "tour": ("tour",),
    "console": ("console_pages", "console_reads", "console_ranks"),
    "soak": ("soak",),
    "runtime": ("runtime_saves", "runtime_damage", "runtime_pace"),
    "recovery": ("recovery",),
    "watch": (
        "watch_hangs",
        "watch_hangs_live",
        "watch_bundles",
        "watch_corruption",
        "watch_nan",
        "watch_resumes",
        "watch_stragglers",
        "watch_stragglers_live",
        "watch_cost",
    ),
    "roundtrip": ("roundtrip", "roundtrip_hosts", "roundtrip_environments", "roundtrip_kills"),
    "runtime_gpu": ("runtime_gpu",),
    "gpu_host": ("gpu_host",),
    "gpu_stack": ("gpu_stack",),
}
"""Name → the modules. Each has ``measure(size)`` and ``SIZES``."""
LIMITS_MIN: Final[Mapping[str, float]] = {"ledger": 20.0, "watch": 20.0, "roundtrip": 20.0}
"""Bars for how long a suite takes itself, in minutes on two cores. It is a figure of the suite."""
SHORT: Final = frozenset({"placement", "decisions", "answers", "commit"})
"""These modules are measured ``SHORT_TIMES`` times: each run ends before a shared machine changes its speed."""
SHORT_TIMES: Final = 3
