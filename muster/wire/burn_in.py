"""Burn-ins between a node's agent and the server: orders and measured figures.

An agent requests orders and gets each once a try. Its report is taken once, and only of the try that was given last.
An agent that requests orders runs none: an order that still runs there by the server's rows was lost, and is given
again.
"""

from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType, field

from muster.wire.enrolment import Printable
from muster.wire.host import BootId, Count
from muster.wire.messages import WireAnswer, WireMessage
from muster.wire.operations import SuspectOperation

BURN_IN_PROTOCOL: Final = 1
MAX_GPUS: Final = 72

Whole = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
Figure = Annotated[float, Meta(ge=-1e15, le=1e15)]
Text = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Label = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[!-~]+( [!-~]+)*\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class BurnInPoll(WireMessage, frozen=True, kw_only=True):
    """A request for burn-in orders."""

    protocol: int
    boot_id: BootId
    max_orders: Annotated[int, Meta(ge=1, le=MAX_GPUS)] = MAX_GPUS


class BurnInOrder(WireAnswer, frozen=True, kw_only=True):
    """An order to run a burn-in. ``deadline_s`` counts from the receipt of this answer.

    ``operation``: it is repeated too. An agent of release 0.1.0 ignores it, and runs the usual burn-in.
    """

    burn_in_id: str
    gpu_uuid: str
    try_number: int
    deadline_s: float
    operation: SuspectOperation | None = None


class BurnInPollAnswer(WireAnswer, frozen=True, kw_only=True):
    """The server's answer to a request for orders.

    ``poll_again_s`` (``ask_again_s`` on the wire) keeps the requests of the whole fleet within the server's capacity.
    """

    orders: tuple[BurnInOrder, ...] = ()
    poll_again_s: float = field(name="ask_again_s", default=10.0)


class ExactSum(WireMessage, frozen=True, kw_only=True):
    """A whole number that is the same on any GPU, and the number that this one gave."""

    name: Label
    golden: Whole
    measured: Whole


class VendorTests(WireMessage, frozen=True, kw_only=True):
    """The results of the vendor's own tests of this GPU. ``failures``: a sentence each; none if all passed."""

    tool: Printable
    level: Annotated[int, Meta(ge=1, le=4)]
    num_passed: Count
    failures: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()


class Figures(WireMessage, frozen=True, kw_only=True):
    """The figures that a burn-in measured.

    ``bands``: name → SHA-256 of the result's bits. ``rates``: higher is better, and the name has the unit.
    ``counter_deltas``: metric → its growth during the run, null where the GPU has no such counter. ``host_rates``: for
    a simulated GPU, the rates of the CPU that ran the work; they are not judged. ``vendor_tests``: where the host runs
    them; omitted otherwise, so that older servers accept the rest. ``covers``: the fault groups that the burn-in tested
    (``muster.domain.evidence.traits.FaultGroup``); agents of release 0.1.0 name none.
    """

    model: Printable
    driver: Printable
    library: Printable
    partial_sums: Annotated[tuple[ExactSum, ...], Meta(max_length=512)]
    bands: Annotated[dict[Label, Digest], Meta(max_length=128)] = field(default_factory=dict)
    counter_deltas: Annotated[dict[Label, Figure | None], Meta(max_length=128)] = field(default_factory=dict)
    rates: Annotated[dict[Label, Figure], Meta(max_length=64)] = field(default_factory=dict)
    host_rates: Annotated[dict[Label, Figure], Meta(max_length=64)] = field(default_factory=dict)
    memory_bytes: Count = 0
    took_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    is_simulated: bool = False
    vendor_tests: VendorTests | UnsetType = UNSET
    covers: Annotated[tuple[Label, ...], Meta(max_length=64)] | UnsetType = UNSET


class BurnInReport(WireMessage, frozen=True, kw_only=True):
    """Either figures, or why there are none."""

    protocol: int
    try_number: Annotated[int, Meta(ge=1, le=1_000_000)]
    figures: Figures | None = None
    could_not_run: Text | None = None


class BurnInAnswer(WireAnswer, frozen=True, kw_only=True):
    """The agent may forget the report. ``is_taken``: false if it arrived before, or a later try has been ordered."""

    is_taken: bool
