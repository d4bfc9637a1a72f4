"""Evidence index: all evidence of one place (a GPU, or a node as such), on shelves by the questions of the rules.

A rule about repetitions reads one code within a day, a finding its own fault within minutes. Neither reads all
evidence, so that a finding about a GPU with many costs no more than one about a quiet GPU. Each shelf is in the order
in which its evidence was last seen.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from health.evidence.same_fault import are_one, requested_action_in
from health.evidence.state import code_of, counts
from muster.domain.evidence.findings import Evidence, Severity
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import HealthPolicy

PLACE_IN_GPU: Final = ("gpc", "tpc", "link")
"""Keys in ``values`` that state the place in the GPU."""
_WATCHED: Final = "watched"
_FIRST_ID: Final = EvidenceId("")
_are_one: Final = lru_cache(maxsize=65_536)(are_one)


class Shelf(NamedTuple):
    """Name of a shelf.

    ``by``: the property that its evidence shares (a fault as samples show it, a key, a code…), ``of``: the property's
    value.
    """

    by: str
    of: object


EVERYTHING: Final = Shelf("all", None)
WORSE_THAN_INFO: Final = Shelf("worse than info", None)
_SEVERE: Final = Shelf("severe", None)
"""Evidence worse than a warning, and evidence taken out of the judgement."""


def of_fault(fault_key: str) -> Shelf:
    return Shelf("key", fault_key)


def of_code(code: int) -> Shelf:
    return Shelf("code", code)


def of_code_at(code: int, place: tuple[float | None, ...]) -> Shelf:
    """Return the shelf of a code at a place. ``place``: its values in the order of ``PLACE_IN_GPU``."""
    return Shelf("place", (code, place))


def of_detector(detector: str) -> Shelf:
    return Shelf("detector", detector)


def place_in_gpu(evidence: Evidence) -> tuple[float | None, ...]:
    return tuple(map(evidence.values.get, PLACE_IN_GPU))


class EvidenceIndex(Mapping[EvidenceId, Evidence]):
    """Evidence of one place by id. Evidence with a known id replaces the former."""

    __slots__ = ("_by_id", "_detectors", "_num_checked", "_pending", "_shelves", "_watched")

    def __init__(self, evidence: Iterable[Evidence] = ()) -> None:
        self._by_id: dict[EvidenceId, Evidence] = {}
        self._shelves: dict[Shelf, list[tuple[int, EvidenceId]]] = {}
        self._detectors: dict[str, set[str]] = {}
        self._pending: set[EvidenceId] = set()
        self._watched: dict[Shelf, None] = {}
        self._num_checked = 0
        for each in evidence:
            self.put(each)

    @property
    def num_checked(self) -> int:
        """Return how much evidence it has handed out in total: the work of its callers."""
        return self._num_checked

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[EvidenceId]:
        """Yield the ids in the order in which they were added."""
        return iter(tuple(self._by_id))

    def __getitem__(self, evidence_id: EvidenceId) -> Evidence:
        self._num_checked += 1
        return self._by_id[evidence_id]

    def put(self, evidence: Evidence) -> None:
        before = self._by_id.get(evidence.id)
        if before is evidence:
            return
        if before is not None:
            for shelf in _shelves_of(before):
                entries = self._shelves[shelf]
                del entries[bisect_left(entries, (before.last_seen_ms, before.id))]
        self._by_id[evidence.id] = evidence
        for shelf in _shelves_of(evidence):
            if shelf.by == _WATCHED:
                self._watched[shelf] = None
            insort(self._shelves.setdefault(shelf, []), (evidence.last_seen_ms, evidence.id))
        self._detectors.setdefault(evidence.traits.shown_as, set()).add(evidence.detector)
        if evidence.pending is not None:
            self._pending.add(evidence.id)
        else:
            self._pending.discard(evidence.id)

    def pending(self) -> list[Evidence]:
        """Return the evidence that weighs only once it has lasted."""
        return [self._by_id[each] for each in sorted(self._pending)]

    def on(self, shelf: Shelf, since_ms: int | None = None, until_ms: int | None = None) -> list[Evidence]:
        """Return the shelf's evidence last seen from ``since_ms`` to ``until_ms``, both included, oldest first."""
        entries = self._shelves.get(shelf)
        if not entries:
            return []
        first = 0 if since_ms is None else bisect_left(entries, (since_ms, _FIRST_ID))
        end = len(entries) if until_ms is None else bisect_left(entries, (until_ms + 1, _FIRST_ID))
        self._num_checked += max(0, end - first)
        return [self._by_id[each] for _, each in entries[first:end]]

    def that_may_move(self) -> tuple[Evidence, ...]:
        """Return all evidence that a standing or a score reads where INFO weighs nothing.

        A fault that only warns weighs once, and restarts a probation when it was last seen. Of evidence that decays
        alike, the newest is enough.
        """
        newest = (entries[-1][1] for shelf in self._watched if (entries := self._shelves[shelf]))
        found = self.on(_SEVERE) + [self._by_id[each] for each in newest]
        self._num_checked += len(self._watched)
        return tuple(found)

    def faults_like(self, fault_key: str) -> list[tuple[Shelf, frozenset[str]]]:
        """Return the shelves of faults that are one with this, each with the detectors that have stated it."""
        return [
            (Shelf("shown", key), frozenset(detectors))
            for key, detectors in self._detectors.items()
            if _are_one(key, fault_key)
        ]

    def words_of_the_driver(self, since_ms: int) -> list[Evidence]:
        """Return the evidence that the driver asks for an action, last seen since then."""
        keys = [key for key in self._detectors if requested_action_in(key) is not None]
        return [each for key in keys for each in self.on(Shelf("shown", key), since_ms)]


def _weighing_shelf(evidence: Evidence) -> Shelf:
    if evidence.severity > Severity.WARNING or not counts(evidence):
        return _SEVERE
    return Shelf(_WATCHED, (evidence.fault_key, evidence.trust, evidence.detector, evidence.counts_for_ms))


def _shelves_of(evidence: Evidence) -> list[Shelf]:
    shelves = [
        EVERYTHING,
        Shelf("shown", evidence.traits.shown_as),
        of_fault(evidence.fault_key),
        of_detector(evidence.detector),
    ]
    code = code_of(evidence)
    if code is not None:
        shelves += [of_code(code), of_code_at(code, place_in_gpu(evidence))]
    if evidence.severity > Severity.INFO:
        shelves += [WORSE_THAN_INFO, _weighing_shelf(evidence)]
    return shelves


def that_may_weigh(known: EvidenceIndex, policy: HealthPolicy) -> tuple[Evidence, ...]:
    """Return all evidence of one GPU that a standing or a score may read."""
    return tuple(known.values()) if policy.score.weighs_info else known.that_may_move()
