"""A recount of the ledger from events, by a path of its own. ``ledger.recount_comparison`` compares them per GPU.

Events do not contain everything. A recount verifies to the millisecond, each account by itself or with others from
which events cannot distinguish it (``recount_comparison.GROUPS``):

* of an attempt: for how long it had each GPU, and for how long each was then being cleaned. What it did in that time
  (steps, saves, replays, hangs) is reported by programs and is in no event;
* of no attempt: each standing, cordons, burn-ins and hosts without contact. Holds, spares and why jobs wait are in no
  event by GPU, so free GPUs are one group.

Earlier releases named no GPUs at an enrolment: then the inventory says when each came. They had no event of a part
that a reboot proved clean: it is UNKNOWN from the attempt's end until the whole allocation was released.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ledger.periods import FOREVER
from ledger.recount_attempts import Course, Part
from ledger.recount_replay import Layer, Replay, Span
from muster.domain.states import BurnInOutcome, Contact, Standing
from muster.domain.times import to_ms

MOST_DECIDING: Final = 12
"""Events that are named for a difference: the newest."""
_ENDS_BURN_IN: Final = frozenset({"given_back", "abandoned", "measured", *BurnInOutcome})
RECOUNTED_KINDS: Final = frozenset(
    {
        *(f"attempt.{what}" for what in ("placed", "host_exited", "host_clean", "hosts_clean", "ended")),
        *(f"allocation.{what}" for what in ("cleaning", "released")),
        *(f"gpu.{standing.lower()}" for standing in Standing),
        *(f"gpu.{what}" for what in ("overridden", "override_released", "override_expired")),
        *(f"gpu.burn_in_{what}" for what in ("began", *sorted(_ENDS_BURN_IN))),
        *(f"node.{contact.lower()}" for contact in Contact),
        *(f"node.{what}" for what in ("enrolled", "gpus_added")),
        *(f"{noun}.{what}" for noun in ("gpu", "node") for what in ("cordoned", "uncordoned")),
    }
)
"""Kinds of the events that a recount takes; others change nothing."""
_DRAIN: Final = "drain"


@dataclass(frozen=True, slots=True)
class Event:
    """A dated fact as the control plane emits it."""

    event_id: str
    kind: str
    at_ms: int
    subject_id: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A GPU on a host: UNPROVEN since ``from_ms``."""

    gpu_uuid: str
    node_id: str
    from_ms: int


class Key(NamedTuple):
    """Whose time it is. ``group``: an account's value, or a group of ``recount_replay``."""

    gpu_uuid: str
    attempt_id: str
    group: str


class _Period(NamedTuple):
    start_ms: int
    end_ms: int
    name: str = ""
    number: int = 0


@dataclass(slots=True)
class _Place:
    """A GPU or a host by its events."""

    standings: list[tuple[int, Standing]] = field(default_factory=list)
    cordons: dict[str, _Period] = field(default_factory=dict)
    overrides: dict[str, _Period] = field(default_factory=dict)
    burn_ins: list[_Period] = field(default_factory=list)
    silences: list[_Period] = field(default_factory=list)


class Recounter:
    """Takes all events since the inventory's beginning, in their order, and counts any time up to the last of them.

    The same event twice counts once.
    """

    def __init__(self, inventory: Iterable[Enrolled] = ()) -> None:
        self._inventory = {one.gpu_uuid: one for one in inventory}
        self._attempts: dict[str, Course] = {}
        self._places: dict[str, _Place] = {}
        self._known: set[str] = set()
        self._taken: dict[str, list[Event]] = {}

    def take(self, event: Event) -> None:
        if event.event_id in self._known or event.kind not in RECOUNTED_KINDS:
            return
        self._known.add(event.event_id)
        self._taken.setdefault(event.subject_id, []).append(event)
        noun, _, what = event.kind.partition(".")
        _TAKES[noun](self, event, what)

    def count(self, edges: Sequence[int], *, only: str | None = None) -> Iterator[dict[Key, int]]:
        """Yield the milliseconds between each two neighbours of ``edges``, which ascend. ``only``: one GPU."""
        uses = self._uses()
        own = {uuid: one for uuid, one in self._inventory.items() if only in {None, uuid}}
        replays = [(uuid, Replay(self._spans(one, uses.get(uuid, ())))) for uuid, one in own.items()]
        for start_ms, end_ms in pairwise(edges):
            yield {
                Key(uuid, *owner): num_ms
                for uuid, replay in replays
                for owner, num_ms in replay.count(start_ms, end_ms).items()
            }

    def deciding(self, gpu_uuid: str, start_ms: int, end_ms: int) -> list[Event]:
        """Return the events that say what the GPU was in this time: those within, and of each subject one before."""
        one = self._inventory.get(gpu_uuid)
        subjects = {gpu_uuid} if one is None else {gpu_uuid, one.node_id}
        for attempt_id, course in self._attempts.items():
            is_over = course.released_ms is not None and course.released_ms <= start_ms
            if (
                course.placed_ms < end_ms
                and not is_over
                and any(gpu_uuid in part.gpus for part in course.parts.values())
            ):
                subjects |= {attempt_id, course.allocation_id}
        found: list[Event] = []
        for subject in subjects:
            known = [each for each in self._taken.get(subject, ()) if each.at_ms < end_ms]
            within = [each for each in known if each.at_ms >= start_ms]
            found += [*known[: len(known) - len(within)][-1:], *within]
        return sorted(found, key=lambda each: each.at_ms)[-MOST_DECIDING:]

    def _uses(self) -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = {}
        for course in self._attempts.values():
            for part in course.parts.values():
                spans = list(course.spans_of(part))
                for gpu in part.gpus:
                    found.setdefault(gpu, []).extend(spans)
        return found

    def _spans(self, one: Enrolled, uses: Iterable[Span]) -> Iterator[Span]:
        own, node = self._places.get(one.gpu_uuid, _NOTHING), self._places.get(one.node_id, _NOTHING)
        moves = [(one.from_ms, Standing.UNPROVEN), *own.standings]
        for number, (at_ms, standing) in enumerate(moves):
            until_ms = moves[number + 1][0] if number + 1 < len(moves) else FOREVER
            yield Span(max(at_ms, one.from_ms), until_ms, Layer.STANDING, standing, (number, 0))
        for each in own.overrides.values():
            yield Span(each.start_ms, each.end_ms, Layer.OVERRIDE, each.name, (each.start_ms, each.number))
        for each in (*own.cordons.values(), *node.cordons.values()):
            if each.name != _DRAIN:
                yield Span(each.start_ms, each.end_ms, Layer.CORDON)
        for each in own.burn_ins:
            yield Span(each.start_ms, each.end_ms, Layer.BURN_IN)
        for each in node.silences:
            yield Span(each.start_ms, each.end_ms, Layer.SILENCE)
        yield from uses

    def _place(self, subject_id: str) -> _Place:
        return self._places.setdefault(subject_id, _Place())

    def take_attempt(self, event: Event, what: str) -> None:
        if what == "placed":
            parts = {node_id: Part(tuple(gpus)) for node_id, gpus in event.payload["nodes"].items()}
            self._attempts[event.subject_id] = Course(event.subject_id, event.at_ms, parts, len(self._attempts))
            return
        course = self._attempts.get(event.subject_id)
        if course is None:
            return
        if what == "ended":
            course.ended_ms = event.at_ms
            return
        named = event.payload.get("node_ids") or [event.payload["node_id"]]
        for part in (course.parts[node_id] for node_id in named if node_id in course.parts):
            if what == "host_exited":
                part.exited_ms = event.at_ms
            else:
                part.clean_ms = event.at_ms

    def take_allocation(self, event: Event, what: str) -> None:
        course = self._attempts.get(event.payload["attempt_id"])
        if course is not None:
            course.allocation_id = event.subject_id
            if what == "released":
                course.released_ms = event.at_ms

    def take_gpu(self, event: Event, what: str) -> None:
        own, payload = self._place(event.subject_id), event.payload
        if what.upper() in Standing.__members__:
            own.standings.append((event.at_ms, Standing(what.upper())))
        elif what == "overridden":
            _end_overrides(own, event.at_ms)
            made = _Period(event.at_ms, _moment_ms(payload["until"]), Standing(payload["standing"]), len(own.overrides))
            own.overrides[payload["override_id"]] = made
        elif what == "override_released":
            _end_overrides(own, event.at_ms)
        elif what == "override_expired":
            _end_overrides(own, event.at_ms, only=payload["override_id"])
        elif what == "burn_in_began":
            own.burn_ins.append(_Period(event.at_ms, FOREVER, payload["burn_in_id"]))
        elif what.removeprefix("burn_in_") in _ENDS_BURN_IN:
            own.burn_ins = [
                one._replace(end_ms=min(one.end_ms, event.at_ms)) if one.name == payload["burn_in_id"] else one
                for one in own.burn_ins
            ]
        else:
            _take_cordon(own, event, what)

    def take_node(self, event: Event, what: str) -> None:
        own = self._place(event.subject_id)
        if what in {"enrolled", "gpus_added"}:
            for gpu in event.payload.get("gpus", ()):
                self._inventory[gpu] = Enrolled(gpu, event.subject_id, event.at_ms)
            if what == "enrolled":
                own.silences.append(_Period(event.at_ms, FOREVER))
        elif what.upper() in Contact.__members__:
            if own.silences:
                last = own.silences[-1]
                own.silences[-1] = last._replace(end_ms=min(last.end_ms, event.at_ms))
            if what.upper() != Contact.LIVE:
                own.silences.append(_Period(event.at_ms, FOREVER))
        else:
            _take_cordon(own, event, what)


def _take_cordon(own: _Place, event: Event, what: str) -> None:
    payload = event.payload
    if what == "cordoned":
        start_ms = _moment_ms(payload["starts_at"]) if payload.get("starts_at") else event.at_ms
        end_ms = _moment_ms(payload["until"]) if payload.get("until") else FOREVER
        own.cordons[payload["cordon_id"]] = _Period(start_ms, end_ms, payload["reason_code"])
    elif what == "uncordoned" and payload["cordon_id"] in own.cordons:
        before = own.cordons[payload["cordon_id"]]
        until_ms = _moment_ms(payload["until"]) if payload.get("until") else FOREVER  # it may have got an end since
        own.cordons[payload["cordon_id"]] = before._replace(end_ms=min(event.at_ms, before.end_ms, until_ms))


def _end_overrides(own: _Place, at_ms: int, *, only: str | None = None) -> None:
    for override_id, one in own.overrides.items():
        if only in {None, override_id}:
            own.overrides[override_id] = one._replace(end_ms=min(one.end_ms, at_ms))


def _moment_ms(moment: str) -> int:
    return to_ms(datetime.fromisoformat(moment))


_NOTHING: Final = _Place()
_TAKES: Final[Mapping[str, Callable[[Recounter, Event, str], None]]] = {
    "attempt": Recounter.take_attempt,
    "allocation": Recounter.take_allocation,
    "gpu": Recounter.take_gpu,
    "node": Recounter.take_node,
}
