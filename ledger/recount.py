"""A recount of the ledger from events: facts are built by a path of their own, and sums are compared per GPU.

Events do not contain everything. ``GROUPS`` has what a recount verifies to the millisecond, each account by itself or
with others from which events cannot distinguish it:

* of an attempt: for how long it had each GPU, and for how long each was then being cleaned. What it did in that time
  (steps, saves, replays, hangs) is reported by programs and is in no event;
* of no attempt: each standing, cordons, burn-ins and hosts without contact. Holds, spares and reasons why jobs wait are
  in no event by GPU, so free GPUs are one group.

When a GPU came to a host is in no event either: the inventory says it, from the same records as the ledger. A part
that is proved clean by its host's reboot has no event of its own; its GPUs count until the whole allocation is released
unless the reboot was of the last host.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from ledger.accounts import OF_ATTEMPTS, Account
from ledger.entries import Entry
from ledger.facts import Attempt, Cordon, Facts, Gpu, Node, Override, Period, StandingMove, Use
from muster.domain.states import Cause, Contact, Standing
from muster.domain.times import to_ms

USED: Final = "used"
EMPTY: Final = "empty"
_EMPTY: Final = (Account.SPARE, Account.HOLD, Account.DRAINING, Account.PENDING, Account.FREE)
GROUPS: Final[Mapping[Account, str]] = {
    **{account: USED for account in OF_ATTEMPTS if account is not Account.CLEANING},
    **{account: EMPTY for account in _EMPTY},  # noqa: C420  # as the line above it
}
"""Accounts that count together in a comparison; each other one counts by itself."""
_ENDS_BURN_IN: Final = ("given_back", "abandoned", "measured")
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
    """A GPU on a host, by the inventory: UNPROVEN since ``from_ms``."""

    gpu_uuid: str
    node_id: str
    from_ms: int
    until_ms: int | None = None
    model: str = ""
    cohort_key: str = ""


@dataclass(slots=True)
class _Part:
    """One host's GPUs of an attempt."""

    gpus: tuple[str, ...]
    exited_ms: int | None = None
    clean_ms: int | None = None


@dataclass(slots=True)
class _Course:
    """One attempt by its events."""

    placed_ms: int
    job_id: str
    parts: dict[str, _Part]
    ended_ms: int | None = None
    cause: Cause | None = None
    times: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Place:
    """A GPU or a host by its events."""

    moves: list[StandingMove] = field(default_factory=list)
    cordons: dict[str, Cordon] = field(default_factory=dict)
    overrides: dict[str, Override] = field(default_factory=dict)
    burn_ins: list[Period] = field(default_factory=list)
    silences: list[Period] = field(default_factory=list)


class Recounter:
    """Takes all events since the inventory's beginning, in their order, and gives the facts of any window.

    Events that it does not know change nothing, and the same event twice counts once.
    """

    def __init__(self, inventory: Iterable[Enrolled]) -> None:
        self._inventory = tuple(inventory)
        self._attempts: dict[str, _Course] = {}
        self._places: dict[str, _Place] = {}
        self._known: set[str] = set()

    def take(self, event: Event) -> None:
        if event.event_id in self._known:
            return
        self._known.add(event.event_id)
        noun, _, what = event.kind.partition(".")
        takes = _TAKES.get(noun)
        if takes is not None:
            takes(self, event, what)

    def facts(self, start_ms: int, end_ms: int) -> Facts:
        alive = {key: one for key, one in self._attempts.items() if one.placed_ms < end_ms}
        uses: dict[str, list[Use]] = {}
        for attempt_id, course in alive.items():
            for part in course.parts.values():
                use = Use(attempt_id, course.placed_ms, part.exited_ms, part.clean_ms)
                for gpu in part.gpus:
                    uses.setdefault(gpu, []).append(use)
        return Facts(
            start_ms,
            end_ms,
            tuple(self._gpu(one, tuple(uses.get(one.gpu_uuid, ()))) for one in self._inventory),
            {node_id: self._node(node_id) for node_id in {one.node_id for one in self._inventory}},
            {attempt_id: _attempt(attempt_id, course) for attempt_id, course in alive.items()},
        )

    def _gpu(self, one: Enrolled, uses: tuple[Use, ...]) -> Gpu:
        own = self._places.get(one.gpu_uuid, _NOTHING)
        return Gpu(
            one.gpu_uuid,
            one.node_id,
            one.model,
            one.cohort_key,
            one.from_ms,
            one.until_ms,
            moves=(StandingMove(one.from_ms, Standing.UNPROVEN, number=-1), *own.moves),
            overrides=tuple(own.overrides.values()),
            cordons=tuple(own.cordons.values()),
            burn_ins=tuple(own.burn_ins),
            uses=uses,
        )

    def _node(self, node_id: str) -> Node:
        own = self._places.get(node_id, _NOTHING)
        return Node(node_id, cordons=tuple(own.cordons.values()), silences=tuple(own.silences))

    def _place(self, subject_id: str) -> _Place:
        return self._places.setdefault(subject_id, _Place())

    def take_attempt(self, event: Event, what: str) -> None:
        if what == "placed":
            parts = {node_id: _Part(tuple(gpus)) for node_id, gpus in event.payload["nodes"].items()}
            self._attempts[event.subject_id] = _Course(event.at_ms, event.payload["job_id"], parts)
            return
        course = self._attempts.get(event.subject_id)
        if course is None:
            return
        part = course.parts.get(event.payload.get("node_id", ""))
        if what == "host_exited" and part is not None:
            part.exited_ms = event.at_ms
        elif what == "host_clean" and part is not None:
            part.clean_ms = event.at_ms
        elif what == "ended":
            course.ended_ms, course.cause = event.at_ms, Cause(event.payload["cause"])
        elif what in {"claiming", "running", "stopping"}:
            course.times.setdefault(what, event.at_ms)

    def take_allocation(self, event: Event, what: str) -> None:
        course = self._attempts.get(event.payload["attempt_id"])
        if what == "released" and course is not None:
            for part in course.parts.values():
                part.clean_ms = event.at_ms if part.clean_ms is None else part.clean_ms

    def take_gpu(self, event: Event, what: str) -> None:
        own, payload = self._place(event.subject_id), event.payload
        if what.upper() in Standing.__members__:
            number = len(own.moves)
            evidence = tuple(payload.get("evidence_ids", ()))
            own.moves.append(StandingMove(event.at_ms, Standing(what.upper()), payload["cause"], evidence, number))
        elif what == "overridden":
            self._end_overrides(own, event.at_ms)
            until_ms = _moment_ms(payload["until"])
            override = Override(event.at_ms, until_ms, Standing(payload["standing"]), payload["override_id"])
            own.overrides[override.override_id] = override
        elif what == "override_released":
            self._end_overrides(own, event.at_ms)
        elif what == "burn_in_began":
            own.burn_ins.append(Period(event.at_ms, None, "", (payload["burn_in_id"],)))
        elif what.removeprefix("burn_in_") in _ENDS_BURN_IN and own.burn_ins and own.burn_ins[-1].end_ms is None:
            own.burn_ins[-1] = replace(own.burn_ins[-1], end_ms=event.at_ms)
        else:
            self._take_cordon(own, event, what)

    def take_node(self, event: Event, what: str) -> None:
        own = self._place(event.subject_id)
        if what == "enrolled":
            own.silences.append(Period(event.at_ms, None, "lost"))
        elif what.upper() in Contact.__members__:
            if own.silences and own.silences[-1].end_ms is None:
                own.silences[-1] = replace(own.silences[-1], end_ms=event.at_ms)
            if what.upper() != Contact.LIVE:
                own.silences.append(Period(event.at_ms, None, what))
        else:
            self._take_cordon(own, event, what)

    @staticmethod
    def _take_cordon(own: _Place, event: Event, what: str) -> None:
        payload = event.payload
        if what == "cordoned":
            start_ms = _moment_ms(payload["starts_at"]) if payload.get("starts_at") else event.at_ms
            end_ms = _moment_ms(payload["until"]) if payload.get("until") else None
            code, cordon_id = payload["reason_code"], payload["cordon_id"]
            own.cordons[cordon_id] = Cordon(start_ms, end_ms, code, cordon_id, is_drain=code == _DRAIN)
        elif what == "uncordoned" and payload["cordon_id"] in own.cordons:
            before = own.cordons[payload["cordon_id"]]
            ends_ms = event.at_ms if before.end_ms is None else min(event.at_ms, before.end_ms)
            own.cordons[payload["cordon_id"]] = replace(before, end_ms=ends_ms)

    @staticmethod
    def _end_overrides(own: _Place, at_ms: int) -> None:
        for override_id, one in own.overrides.items():
            own.overrides[override_id] = replace(one, end_ms=min(one.end_ms, at_ms))


@dataclass(frozen=True, slots=True)
class Difference:
    """Time of a GPU that two counts do not agree on. ``group``: an account, or ``USED`` or ``EMPTY``."""

    gpu_uuid: str
    attempt_id: str
    group: str
    stored_ms: int
    recounted_ms: int


def by_group(entries: Iterable[Entry], excluded: Collection[str] = ()) -> dict[tuple[str, str, str], int]:
    """Return the milliseconds by GPU, attempt and group. ``excluded``: nodes within gaps, which are left out."""
    found: dict[tuple[str, str, str], int] = {}
    for entry in entries:
        head = entry.heading
        if head.node_id in excluded:
            continue
        is_used = head.attempt_id and head.account is Account.NO_CONTACT
        group = USED if is_used else GROUPS.get(head.account, head.account.value)
        for gpu, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True):
            key = gpu, head.attempt_id, group
            found[key] = found.get(key, 0) + num_ms
    return {key: num_ms for key, num_ms in found.items() if num_ms}


def differences(
    stored: Iterable[Entry], recounted: Iterable[Entry], excluded: Collection[str] = ()
) -> list[Difference]:
    """Return where the stored entries and the entries of a recount differ, by GPU: nothing where they agree."""
    one, other = by_group(stored, excluded), by_group(recounted, excluded)
    keys = sorted(key for key in one.keys() | other.keys() if one.get(key, 0) != other.get(key, 0))
    return [Difference(*key, one.get(key, 0), other.get(key, 0)) for key in keys]


def _attempt(attempt_id: str, course: _Course) -> Attempt:
    return Attempt(
        attempt_id,
        course.placed_ms,
        job_id=course.job_id,
        claimed_ms=course.times.get("claiming"),
        running_ms=course.times.get("running"),
        stopping_ms=course.times.get("stopping"),
        ended_ms=course.ended_ms,
        end_cause=course.cause,
        has_reports=False,
    )


def _moment_ms(moment: str) -> int:
    return to_ms(datetime.fromisoformat(moment))


_NOTHING: Final = _Place()
_TAKES: Final[Mapping[str, Callable[[Recounter, Event, str], None]]] = {
    "attempt": Recounter.take_attempt,
    "allocation": Recounter.take_allocation,
    "gpu": Recounter.take_gpu,
    "node": Recounter.take_node,
}
