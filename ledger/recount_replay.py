"""The state of one GPU at each moment, by its periods: code apart from ``ledger.books``, whose results it checks.

standing   UNPROVEN─────HEALTHY──────────────────QUARANTINED────
use                        ├─ attempt_a ──┤clean┤
cordon                  ├──────────────────────────┤
group      unproven─────cordon used────────cleaning crd quarantined
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from muster.domain.states import Standing

USED: Final = "used"
CLEANING: Final = "cleaning"
EMPTY: Final = "empty"
UNKNOWN: Final = "unknown"
"""Group of time of which the events do not say enough."""
_OUT: Final = ((Standing.RETIRED, "retired"), (Standing.REPAIR, "repair"), (Standing.QUARANTINED, "quarantined"))
_UNTRUSTED: Final = ((Standing.UNPROVEN, "unproven"), (Standing.SUSPECT, "suspect"))
Owner = tuple[str, str]
"""The attempt that had the GPU, or an empty text, and the group."""


class Layer(Enum):
    """What a period is about. Several layers hold at once; ``_owner`` says which counts."""

    STANDING = auto()
    OVERRIDE = auto()
    CORDON = auto()
    BURN_IN = auto()
    SILENCE = auto()
    USE = auto()
    CLEANING = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Span:
    """One layer from ``start_ms`` to before ``end_ms``.

    ``value``: a standing, or an attempt. ``order``: of two overrides the last counts, and of two uses the first.
    """

    start_ms: int
    end_ms: int
    layer: Layer
    value: str = ""
    order: tuple[int, int] = (0, 0)


class Replay:
    """One GPU's time, read once from its beginning to its end."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._to_come = sorted((one for one in spans if one.start_ms < one.end_ms), key=_start, reverse=True)
        self._open: list[Span] = []
        self._owner: Owner | None = None

    def count(self, start_ms: int, end_ms: int) -> dict[Owner, int]:
        """Return the milliseconds of each owner and group. ``start_ms``: no earlier than the end of the last count."""
        found: dict[Owner, int] = {}
        at_ms = start_ms
        while at_ms < end_ms:
            self._move_to(at_ms)
            ends = [one.end_ms for one in self._open]
            starts = [self._to_come[-1].start_ms] if self._to_come else []
            next_ms = min(end_ms, *ends, *starts)
            if self._owner is not None:
                found[self._owner] = found.get(self._owner, 0) + next_ms - at_ms
            at_ms = next_ms
        return found

    def _move_to(self, at_ms: int) -> None:
        is_changed = False
        while self._to_come and self._to_come[-1].start_ms <= at_ms:
            self._open.append(self._to_come.pop())
            is_changed = True
        if any(one.end_ms <= at_ms for one in self._open):
            self._open = [one for one in self._open if one.end_ms > at_ms]
            is_changed = True
        if is_changed:
            self._owner = _owner(self._open)


def _owner(spans: Sequence[Span]) -> Owner | None:
    """Return what counts of the periods that hold at one moment; None: the GPU was not enrolled."""
    layers = {one.layer for one in spans}
    if Layer.STANDING not in layers:
        return None
    uses = [one for one in spans if one.layer in {Layer.USE, Layer.CLEANING, Layer.UNKNOWN}]
    if uses:
        return _use(min(uses, key=_order), is_silent=Layer.SILENCE in layers)
    own = max((one for one in spans if one.layer is Layer.STANDING), key=_order).value
    overrides = [one for one in spans if one.layer is Layer.OVERRIDE]
    stands = max(overrides, key=_order).value if overrides else own
    out = next((name for standing, name in _OUT if standing == stands), "")
    if own == Standing.REPAIR and out != "retired":  # an override ends no repair
        out = "repair"
    if out:
        return "", out
    for layer, name in ((Layer.CORDON, "cordoned"), (Layer.BURN_IN, "burn_in"), (Layer.SILENCE, "no_contact")):
        if layer in layers:
            return "", name
    return "", next((name for standing, name in _UNTRUSTED if standing == stands), EMPTY)


def _use(span: Span, *, is_silent: bool) -> Owner:
    if span.layer is Layer.UNKNOWN:
        return span.value, UNKNOWN
    # A host without contact cleans nothing that is known of: the ledger has this time with the attempt's other time.
    return span.value, CLEANING if span.layer is Layer.CLEANING and not is_silent else USED


def _start(span: Span) -> int:
    return span.start_ms


def _order(span: Span) -> tuple[int, int]:
    return span.order
