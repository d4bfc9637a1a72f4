"""Hearing from hosts: which messages move a node's contact forward, and when it counts as silent or lost."""

from dataclasses import dataclass
from typing import Final
from zlib import crc32

from muster.domain.states import Contact

MAX_PAST_BOOTS: Final = 16


@dataclass(frozen=True, slots=True)
class LastContact:
    """The newest accepted heartbeat of a host. ``past_boots``: earlier boot ids, newest first, never accepted again."""

    boot_id: str
    received_ms: int
    seq: int = 0
    past_boots: tuple[str, ...] = ()


def next_beat_s(interval_s: float, jitter_fraction: float, node_id: str, seq: int) -> float:
    """Return when a host sends its next heartbeat, within ± ``jitter_fraction`` of ``interval_s``.

    Hosts that began together drift apart. The same heartbeat of the same host always gets the same answer.
    """
    share = crc32(f"{node_id}/{seq}".encode()) / (1 << 32)
    return interval_s * (1 + jitter_fraction * (2 * share - 1))


def accept_heartbeat(before: LastContact | None, boot_id: str, seq: int, now_ms: int) -> LastContact | None:
    """Return the contact after one heartbeat, or None for a stale one: a past boot, or not newer within it (I14)."""
    if before is None:
        return LastContact(boot_id, now_ms, seq)
    if boot_id == before.boot_id:
        return LastContact(boot_id, now_ms, seq, before.past_boots) if seq > before.seq else None
    if boot_id in before.past_boots:
        return None
    return LastContact(boot_id, now_ms, seq, (before.boot_id, *before.past_boots)[:MAX_PAST_BOOTS])


def contact_after(silence_ms: int, *, silent_ms: int, lost_ms: int) -> Contact:
    """LIVE, SILENT or LOST by the time since the last contact with the node."""
    if silence_ms >= lost_ms:
        return Contact.LOST
    return Contact.SILENT if silence_ms >= silent_ms else Contact.LIVE
