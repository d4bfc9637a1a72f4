"""Repairs between a node's agent and the server: which verb to carry out, and how it went.

An order is given once. An agent keeps what it was given, so one that asks without having reported has lost it: that
repair failed. A verb that ended is reported again while its GPU still tells of the fault, until its time is over; other
GPUs' orders are asked for meanwhile.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from muster.wire.burn_in import Words
from muster.wire.host import BootId, ShortText
from muster.wire.messages import WireAnswer, WireMessage
from muster.wire.telemetry import MAX_GPUS

REPAIR_PROTOCOL: Final = 1
MAX_VERBS: Final = 32
"""More than there are: a newer agent may know of some that its server does not."""


class RepairAsk(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """``waiting``: repairs whose verb ended and was reported, and that are to be reported again.

    ``verbs``: of ``RepairVerb``, those that the host's settings allow; none is left out, so that a host which allows
    none keeps to servers of the release before.
    """

    protocol: int
    boot_id: BootId
    waiting: Annotated[tuple[ShortText, ...], Meta(max_length=MAX_GPUS)] = ()
    verbs: Annotated[tuple[ShortText, ...], Meta(max_length=MAX_VERBS)] = ()


class RepairOrder(WireAnswer, frozen=True, kw_only=True):
    """``verb`` of ``RepairVerb``; an agent says so where it knows none. ``deadline_s``: from this answer's receipt."""

    repair_id: str
    gpu_uuid: str
    verb: str
    deadline_s: float


class RepairAskAnswer(WireAnswer, frozen=True, kw_only=True):
    """``ask_again_s``: the fleet as a whole asks no more often than the server can bear."""

    order: RepairOrder | None = None
    ask_again_s: float


class RepairReport(WireMessage, frozen=True, kw_only=True):
    """``words``: what it did, or why it did not."""

    protocol: int
    boot_id: BootId
    outcome: Literal["done", "failed"]
    words: Words
    is_simulated: bool = False


class RepairAnswer(WireAnswer, frozen=True, kw_only=True):
    """``is_taken``: false where it had no effect. ``again_s``: not yet; to be reported again after so long."""

    is_taken: bool
    again_s: float | None = None
