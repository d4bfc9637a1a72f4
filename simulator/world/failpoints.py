"""Points at which the control plane of this world may die: before and after the commit of each unit of work."""

from typing import Final

from muster.domain.lifecycle import attempt as attempts

ACTIONS: Final = (
    "job.submit", "job.cancel", "job.resize", "attempt.stop", "placement.place", "reclaim.notify", "reclaim.withdraw",
    "reclaim.lapse", "host.heartbeat",
    "host.claim", "host.report", "host.release", "reconcile.attempt", "reconcile.job", "judgement.judge",
    "breaker.close",
)  # fmt: skip
"""Actions with failpoints. ``host.release`` is the report after which GPUs become free."""
FAILPOINTS: Final = tuple(f"{action}.{point}" for action in ACTIONS for point in ("before_commit", "after_commit"))

_ACTION_OF: Final[dict[type[attempts.Event], str]] = {
    attempts.ClaimRequested: "host.claim",
    attempts.Listed: "host.report",
    attempts.Ready: "host.report",
    attempts.Started: "host.report",
    attempts.Exited: "host.report",
    attempts.Cleaned: "host.release",
    attempts.Tick: "reconcile.attempt",
}
AROUND: Final = {kind: (f"{action}.before_commit", f"{action}.after_commit") for kind, action in _ACTION_OF.items()}
"""Event of an attempt → the failpoints before and after the commit of what it changes."""
