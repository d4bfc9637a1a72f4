"""Identities: each noun has its own type and prefix.

An id is ``<prefix>_`` and 26 characters of Crockford base32 (a ULID: 48 bits of milliseconds, 80 of chance), so ids
of one noun sort by birth. Ids are made at the edge (``muster.identity``); the pure core only carries them.
"""

import re
from typing import Final, NewType

TenantId = NewType("TenantId", str)
KeyId = NewType("KeyId", str)
NodeId = NewType("NodeId", str)
GpuUuid = NewType("GpuUuid", str)
JobId = NewType("JobId", str)
AttemptId = NewType("AttemptId", str)
AllocationId = NewType("AllocationId", str)
CheckpointId = NewType("CheckpointId", str)
EvidenceId = NewType("EvidenceId", str)
ReclaimId = NewType("ReclaimId", str)
EventId = NewType("EventId", str)
VerdictId = NewType("VerdictId", str)
SecretId = NewType("SecretId", str)
RouteId = NewType("RouteId", str)
NotificationId = NewType("NotificationId", str)
Fence = NewType("Fence", int)

PREFIXES: Final = {
    "tenant": "ten",
    "key": "key",
    "person": "prs",
    "session": "ses",
    "login": "lgn",
    "node": "node",
    "job": "job",
    "attempt": "att",
    "allocation": "alc",
    "checkpoint": "ckpt",
    "cordon": "cdn",
    "override": "ovr",
    "evidence": "ev",
    "burn_in": "bi",
    "repair": "rep",
    "reclaim": "rcl",
    "secret": "sec",
    "incident": "inc",
    "route": "rte",
    "notification": "ntf",
    "stop_request": "stp",
    "verdict": "vrd",
    "event": "evt",
    "audit": "aud",
    "request": "req",
}
"""Noun → prefix of its ids."""

_BODY: Final = r"[0-9a-hjkmnp-tv-z]{26}"
_PATTERNS: Final = {noun: re.compile(rf"{prefix}_{_BODY}") for noun, prefix in PREFIXES.items()}

FENCE_EPOCH_BITS: Final = 32


def is_id(noun: str, text: str) -> bool:
    """Return whether ``text`` has the shape of an id of ``noun``."""
    return _PATTERNS[noun].fullmatch(text) is not None


def compose_fence(cluster_epoch: int, serial: int) -> Fence:
    """Fence = cluster_epoch · 2³² + n. It only grows: n within an epoch, the epoch across a restore."""
    if not 0 < serial < 1 << FENCE_EPOCH_BITS:
        msg = f"fence serial {serial} is outside 1..2^32-1"
        raise ValueError(msg)
    return Fence((cluster_epoch << FENCE_EPOCH_BITS) + serial)
