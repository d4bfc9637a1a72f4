"""The reasons why a job waits, as stable tokens for programs, in the order in which they are shown."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class WaitReason(StrEnum):
    """A reason why a job is pending, in the order in which reasons are shown.

    First come limits that are checked before any GPU; then the filters, each of which excludes GPUs; then the actions
    of the plan; last the reasons why the scheduler does not try a job at all.
    """

    UNKNOWN_TIER = "unknown_tier"
    QUOTA = "quota"
    QUOTA_ABOVE = "quota_above"
    BORROWING = "borrowing"
    FIRM_GUARANTEES = "firm_guarantees"
    FAIR_SHARE = "fair_share"

    CAPACITY = "capacity"
    RESIDENCY = "residency"
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
    HOLD_OF_OTHERS = "hold_of_others"
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
    HOLD = "hold"
    REPLACEMENT = "replacement"

    TRIED_AGAIN = "tried_again"
    RELEASE_NEEDED = "release_needed"
    BUNDLE_NEEDED = "bundle_needed"
    RECOVERING = "recovering"
    PREFLIGHT = "preflight"
    CLEANING = "cleaning"
    FAR_BEHIND = "far_behind"
    EXAMINED_LATER = "examined_later"


_ALL: Final = tuple(WaitReason)
SOLVER_REASONS: Final = frozenset(_ALL[_ALL.index(WaitReason.CAPACITY) : _ALL.index(WaitReason.SLICES) + 1])
"""Reasons that exclude GPUs, each GPU counted once. Limits and actions of the plan count other GPUs."""

WAIT_REASON_TEXTS: Final[Mapping[WaitReason, str]] = {
    WaitReason.UNKNOWN_TIER: "the policy no longer defines its tier",
    WaitReason.QUOTA: "above its tenant's quota in this tier",
    WaitReason.QUOTA_ABOVE: "above the quota in this tier of the department that its tenant belongs to",
    WaitReason.BORROWING: "above what its tenant, or the tenant's department, may borrow in this tier",
    WaitReason.FIRM_GUARANTEES: "guaranteed to other tenants, and not lent to a tier that no rule reclaims",
    WaitReason.FAIR_SHARE: "held by its tenant beyond its fair share of the tier: jobs of tenants with less go first",
    WaitReason.CAPACITY: "the whole fleet, idle and fit, would not hold it",
    WaitReason.RESIDENCY: "on hosts outside the sites of its tenant's residency rule",
    WaitReason.LABELS: "on hosts that its label rule excludes",
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
    WaitReason.HOLD_OF_OTHERS: "held for other jobs, or taken by them in this cycle",
    WaitReason.FRAGMENTATION: "free on hosts with too few free GPUs for one host's part",
    WaitReason.COHORT: "free on whole hosts of other cohorts",
    WaitReason.TOPOLOGY: "free on whole hosts of its cohort, in other domains",
    WaitReason.SLICES: "free on whole hosts of its home that are left over once slices are rounded down",
    WaitReason.RECLAIM_CAP: "reclaimable for it, beyond the cap on what their tenants may lose in its window",
    WaitReason.RECLAIM_MIN_RUN: "reclaimable for it, once their jobs have had their minimum run time",
    WaitReason.RECLAIM_TOO_LITTLE: "reclaimable for it, but too few even all together",
    WaitReason.GUARANTEES: "possibly reclaimable for it, but too many are within their tenants' own guarantees",
    WaitReason.OWN_GUARANTEE: "with it its tenant, or the tenant's department, would hold more than is guaranteed",
    WaitReason.ENDING_SOON: "enough GPUs become free by themselves within the notice of a reclaim",
    WaitReason.RECLAIM_NOTIFIED: "being reclaimed for it",
    WaitReason.HOLD: "of the place where it will start, held for it as they become free",
    WaitReason.REPLACEMENT: "of its last attempt and good, kept until others of its domain replace the lost ones",
    WaitReason.TRIED_AGAIN: "there is room by now: the scheduler tries it in its next cycle",
    WaitReason.RELEASE_NEEDED: "it is HELD until a person releases it",
    WaitReason.BUNDLE_NEEDED: "the store lost a part of its bundle: it continues by itself once that is whole again",
    WaitReason.RECOVERING: "its last attempt is being cleaned up, or the pause before the next one is not over",
    WaitReason.PREFLIGHT: "a host checks first that everything the job needs is there",
    WaitReason.CLEANING: "the GPUs on which it will continue are being proved clean",
    WaitReason.FAR_BEHIND: "so many jobs are before it that the scheduler does not try it yet",
    WaitReason.EXAMINED_LATER: (
        "no place is free for it now, and more kinds of jobs wait than one cycle examines: it is examined in its turn"
    ),
}
"""The text of each reason; for a filter it describes the GPUs that it excludes."""
