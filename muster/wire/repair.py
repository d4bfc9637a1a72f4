"""Repairs between a node's agent and the server: which verb to carry out, and how it went.

An order is given once. An agent keeps its order, so an agent that requests one without a report has lost the last:
that repair failed. A verb that ended is reported again while its GPU still shows the fault, until its time is over. The
agent requests other GPUs' orders meanwhile.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from muster.wire.burn_in import Text
from muster.wire.host import BootId, ShortText
from muster.wire.messages import WireAnswer, WireMessage
from muster.wire.telemetry import MAX_GPUS

REPAIR_PROTOCOL: Final = 1
MAX_VERBS: Final = 32
"""More than there are: a newer agent may have verbs that its server does not know."""


class RepairPoll(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A request for a repair order.

    ``waiting``: repairs whose verb ended and was reported, and that are to be reported again. ``verbs``: the values of
    ``RepairVerb`` that the host's settings allow. An empty list is omitted, so that such a host remains compatible with
    servers of the release before.
    """

    protocol: int
    boot_id: BootId
    waiting: Annotated[tuple[ShortText, ...], Meta(max_length=MAX_GPUS)] = ()
    verbs: Annotated[tuple[ShortText, ...], Meta(max_length=MAX_VERBS)] = ()


class RepairOrder(WireAnswer, frozen=True, kw_only=True):
    """``verb`` of ``RepairVerb``; an agent without it reports that. ``deadline_s``: from this answer's receipt."""

    repair_id: str
    gpu_uuid: str
    verb: str
    deadline_s: float


class RepairPollAnswer(WireAnswer, frozen=True, kw_only=True):
    """The server's answer.

    ``poll_again_s`` (``ask_again_s`` on the wire) keeps the requests of the whole fleet within the server's capacity.
    """

    order: RepairOrder | None = None
    poll_again_s: float = field(name="ask_again_s")


class RepairReport(WireMessage, frozen=True, kw_only=True):
    """The report of a repair. ``text`` (``words`` on the wire): the actions taken, or why there were none."""

    protocol: int
    boot_id: BootId
    outcome: Literal["done", "failed"]
    text: Text = field(name="words")
    is_simulated: bool = False


class RepairAnswer(WireAnswer, frozen=True, kw_only=True):
    """The server's answer to a report.

    ``is_taken``: false where the report had no effect. ``again_s``: the report came too early and is to be repeated
    after that time.
    """

    is_taken: bool
    again_s: float | None = None
