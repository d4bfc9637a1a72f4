"""The reasons why a job waits, as stable tokens for programs, in the order in which they are shown."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class WaitReason(StrEnum):
    """First what is asked before any GPU is looked at; then the filters, each of which leaves GPUs out; then what is
    done about it; last what keeps a job from being looked at at all.
    """

    UNKNOWN_TIER = "unknown_tier"
    QUOTA = "quota"
    QUOTA_ABOVE = "quota_above"
    BORROWING = "borrowing"
    FAIR_SHARE = "fair_share"

    CAPACITY = "capacity"
    LABELS = "labels"
    MIG_MODE = "mig_mode"
    STANDING = "standing"
    YOUNG_PROBATION = "young_probation"
    CORDON = "cordon"
    MAINTENANCE = "maintenance"
    CONTACT = "contact"
    BURN_IN = "burn_in"
    REPORTED = "reported"
    AVOIDED = "avoided"
    IN_USE = "in_use"
    SPARE = "spare"
    PROMISED = "promised"
    FRAGMENTATION = "fragmentation"
    COHORT = "cohort"
    TOPOLOGY = "topology"
    SLICES = "slices"

    RECLAIM_CAP = "reclaim_cap"
    RECLAIM_MIN_RUN = "reclaim_min_run"
    RECLAIM_TOO_LITTLE = "reclaim_too_little"
    GUARANTEES = "guarantees"
    OWN_GUARANTEE = "own_guarantee"
    ENDING_SOON = "ending_soon"
    RECLAIM_NOTIFIED = "reclaim_notified"
    PLACE_HELD = "place_held"
    REPLACEMENT = "replacement"

    TRIED_AGAIN = "tried_again"
    PERSON = "person"
    RECOVERING = "recovering"
    LOOK = "look"
    CLEANING = "cleaning"
    FAR_BEHIND = "far_behind"


_ALL: Final = tuple(WaitReason)
FILTERS: Final = frozenset(_ALL[_ALL.index(WaitReason.CAPACITY) : _ALL.index(WaitReason.SLICES) + 1])
"""What leaves GPUs out, each GPU counted once. ``quota`` and what is done about it count others."""

WORDS: Final[Mapping[WaitReason, str]] = {
    WaitReason.UNKNOWN_TIER: "the policy no longer defines its tier",
    WaitReason.QUOTA: "above its tenant's quota in this tier",
    WaitReason.QUOTA_ABOVE: "above the quota in this tier of the department that its tenant belongs to",
    WaitReason.BORROWING: "above what its tenant, or the department of it, may hold beyond its guarantee in this tier",
    WaitReason.FAIR_SHARE: "held by its tenant beyond its fair share of the tier: jobs of tenants with less go first",
    WaitReason.CAPACITY: "the whole fleet, idle and fit, would not hold it",
    WaitReason.LABELS: "on hosts that its rule of labels leaves out",
    WaitReason.MIG_MODE: "in MIG mode",
    WaitReason.STANDING: "without a standing that its tier admits",
    WaitReason.YOUNG_PROBATION: "in the first part of a probation, which is for reclaimable tiers",
    WaitReason.CORDON: "cordoned, or in a maintenance window",
    WaitReason.MAINTENANCE: "on hosts that close for planned work before it would end; a wall time may bring it there",
    WaitReason.CONTACT: "on hosts that are silent or lost",
    WaitReason.BURN_IN: "in burn-in",
    WaitReason.REPORTED: "reported as broken, and about to be judged",
    WaitReason.AVOIDED: "on hosts where its last attempts met a fault",
    WaitReason.IN_USE: "in use, or being proved clean",
    WaitReason.SPARE: "kept free as spares, for gangs that lose hosts",
    WaitReason.PROMISED: "held for other jobs, or taken by them in this cycle",
    WaitReason.FRAGMENTATION: "free on hosts with too few free GPUs for one host's part",
    WaitReason.COHORT: "free on whole hosts of other cohorts",
    WaitReason.TOPOLOGY: "free on whole hosts of its cohort, in other domains",
    WaitReason.SLICES: "free on whole hosts of its home that are left over once slices are rounded down",
    WaitReason.RECLAIM_CAP: "would give way for it, beyond the cap on what their tenants may lose in its window",
    WaitReason.RECLAIM_MIN_RUN: "would give way for it, once their jobs have had their minimum run time",
    WaitReason.RECLAIM_TOO_LITTLE: "would give way for it, and all together would not make room for it",
    WaitReason.GUARANTEES: "might give way for it, of which too much is within their tenants' own guarantees",
    WaitReason.OWN_GUARANTEE: "with it its tenant, or the department of it, would hold more than is guaranteed",
    WaitReason.ENDING_SOON: "enough comes free of its own accord within the notice of a reclaim",
    WaitReason.RECLAIM_NOTIFIED: "being reclaimed for it",
    WaitReason.PLACE_HELD: "of the place where it will start, held for it as they come free",
    WaitReason.REPLACEMENT: "of its last attempt and good, kept until others of its domain replace those that it lost",
    WaitReason.TRIED_AGAIN: "there is room by now: the scheduler tries it in its next cycle",
    WaitReason.PERSON: "it is HELD until a person releases it",
    WaitReason.RECOVERING: "its last attempt is being cleared away, or the pause before the next one is not over",
    WaitReason.LOOK: "a host looks first whether what it needs is there",
    WaitReason.CLEANING: "the GPUs that it goes on with are being proved clean",
    WaitReason.FAR_BEHIND: "so many jobs are before it that the scheduler does not look at it yet",
}
"""What each says; of a filter, where the GPUs are that it leaves out."""
