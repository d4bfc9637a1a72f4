"""Verdicts on running jobs: kinds, states and the reactions to them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class VerdictKind(StrEnum):
    """Kinds of faults of running work."""

    HANG = "hang"
    STRAGGLER = "straggler"
    DIVERGENCE = "divergence"
    CORRUPTION = "corruption"
    VALUE_FAULT = "value_fault"


class VerdictState(StrEnum):
    """State of a verdict. A person dismisses a false alarm; it then blames no host and no GPU."""

    STANDING = "standing"
    DISMISSED = "dismissed"


class VerdictReaction(StrEnum):
    """What followed a verdict. ``none``: the attempt had ended, or the program reacted itself.

    ``swap``: after the next checkpoint the job is placed again without the host.
    """

    RESTART = "restart"
    HOLD = "hold"
    NOTIFY = "notify"
    SWAP = "swap"
    NONE = "none"


REACTION_WORDS: Final[Mapping[VerdictReaction, str]] = {
    VerdictReaction.RESTART: "the attempt was stopped, and the job tries again",
    VerdictReaction.HOLD: "the attempt was stopped, and the job is held",
    VerdictReaction.NOTIFY: "it is only reported, and nothing was stopped",
    VerdictReaction.SWAP: "after the next checkpoint the job is placed again without that host",
    VerdictReaction.NONE: "nothing more followed",
}
"""What followed a verdict, for a person."""
BLAMES_PROGRAM: Final = frozenset(
    {"skipped_collective", "mismatched_collective", "endless_python", "dead_loop", "program"}
)
"""Causes for which the job's own program is to blame: another host would change nothing."""
