"""The effect of a plan on a job as text, for a pending job and for a plan that is only requested."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from muster.domain.job.wait_reasons import WAIT_REASON_TEXTS, WaitReason
from muster.domain.states import PlanOutcome


class Tense(StrEnum):
    """The tense of a text. ``DONE``: the effect has happened. ``CONDITIONAL``: it would happen, and has not."""

    DONE = "done"
    CONDITIONAL = "asked"


OUTCOMES: Final[Mapping[Tense, Mapping[PlanOutcome, str]]] = {
    Tense.DONE: {
        PlanOutcome.STARTS: "it starts at once",
        PlanOutcome.RECLAIMS: "GPUs are reclaimed for it",
        PlanOutcome.HOLD: "a place is held for it",
        PlanOutcome.WAITS: "it waits",
    },
    Tense.CONDITIONAL: {
        PlanOutcome.STARTS: "it would start at once",
        PlanOutcome.RECLAIMS: "GPUs would be reclaimed for it",
        PlanOutcome.HOLD: "a place would be held for it",
        PlanOutcome.WAITS: "it would wait",
    },
}
_CONDITIONAL_REASONS: Final[Mapping[WaitReason, str]] = {
    WaitReason.RECLAIM_NOTIFIED: "would be reclaimed for it",
    WaitReason.HOLD: "of the place where it would start, to be held for it as they become free",
    WaitReason.FAR_BEHIND: "so many jobs are before it that the scheduler would not try it yet",
}
"""Reasons about an effect on the job. The others describe the fleet, with the same text in either tense."""


def reason_text(token: WaitReason, tense: Tense) -> str:
    return (
        _CONDITIONAL_REASONS.get(token, WAIT_REASON_TEXTS[token])
        if tense is Tense.CONDITIONAL
        else WAIT_REASON_TEXTS[token]
    )
