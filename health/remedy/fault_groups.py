"""Fault groups: faults that have one remedy are one group, and a board's repairs are counted by it."""

from health.standing.gpu_case import GpuCase, condemning_of
from muster.domain.evidence.traits import FaultGroup


def fault_group_of(gpu: GpuCase) -> str:
    """Return the group of the oldest evidence that condemns it, else of the evidence seen last, else ``other``."""
    against = condemning_of(gpu) or tuple(sorted(gpu.evidence, key=lambda each: (-each.last_seen_ms, each.id)))
    return against[0].traits.group if against else FaultGroup.OTHER
