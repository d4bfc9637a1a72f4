"""One window of the fleet: the time of each GPU becomes entries, whose sum is exactly the time of its enrolment (I27).

What several GPUs share is computed once: the time of an attempt for all its hosts, the sums of a host's GPUs for all of
them, and the time of GPUs without an attempt for all in the same situation.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from ledger.accounts import Account
from ledger.attempt_claims import AttemptClaims, claims_of
from ledger.claims import Claim, Key, settle, sums
from ledger.entries import Entry, Heading, UnbalancedError
from ledger.facts import Facts, Gpu, Node, Period, Wait
from ledger.gpu_claims import UsePart, Within, as_claims, cut, empty_parts, parts_of_uses, when_empty
from ledger.periods import Pair, end_of, joined, without

UNKNOWN_ATTEMPT: Final = "unknown_attempt"
"""Cause of UNEXPLAINED: a GPU is used by an attempt of which there are no facts."""
Part = tuple[UsePart, tuple[Within, ...]] | tuple[Pair, tuple[Within, ...]]
"""A part of a GPU's time, with all that its accounts depend on: equal ones have equal sums."""


@dataclass(frozen=True, slots=True)
class Book:
    """The entries of a window. ``capacity_ms``: the enrolled time of all GPUs, which is the sum of the entries."""

    start_ms: int
    end_ms: int
    entries: tuple[Entry, ...]
    num_gpus: int
    capacity_ms: int
    unexplained_ms: int


def book_of(facts: Facts) -> Book:
    """Account for all GPUs of the facts.

    Raises:
        UnbalancedError: I27 does not hold.
    """
    accountant = _Accountant(facts)
    entries: list[Entry] = []
    capacity_ms = unexplained_ms = 0
    counted: set[str] = set()
    for node_id, gpus in groupby(sorted(_in_one_place(facts.gpus), key=_place), key=_node_id):
        of_node: dict[Heading, tuple[list[str], list[int]]] = {}
        for heading, uuids, num_ms in accountant.headed(node_id, list(gpus)):
            own = of_node.setdefault(heading, ([], []))
            own[0].extend(uuids)
            own[1].extend([num_ms] * len(uuids))
        for heading, (uuids, own_ms) in of_node.items():
            entries.append(Entry(heading, tuple(uuids), tuple(own_ms)))
            unexplained_ms += sum(own_ms) if heading.account is Account.UNEXPLAINED else 0
            capacity_ms += sum(own_ms)
            counted.update(uuids)
    accountant.require_all(capacity_ms)
    return Book(facts.start_ms, facts.end_ms, tuple(entries), len(counted), capacity_ms, unexplained_ms)


class _Accountant:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._start_ms, self._end_ms = facts.start_ms, facts.end_ms
        self._ended_ms = {one.attempt_id: one.ended_ms for one in facts.attempts.values()}
        self._claims: dict[str, AttemptClaims] = {}
        self._timelines: dict[tuple[str, tuple[Within, ...]], list[Claim]] = {}
        self._sums: dict[tuple[Part, ...], dict[Key, int]] = {}
        self._of_part: dict[Part, dict[Key, int]] = {}
        self._waits: dict[str, tuple[Wait, ...]] = {}
        self._silences: tuple[Within, ...] = ()
        self._capacity_ms = 0

    def headed(self, node_id: str, gpus: Sequence[Gpu]) -> Iterator[tuple[Heading, Sequence[str], int]]:
        """Yield the time of the GPUs of one host. GPUs that are alike come together."""
        node = self._facts.nodes.get(node_id) or Node(node_id)
        self._silences = tuple(
            cut(Account.NO_CONTACT, sorted(set(node.silences), key=_begun), self._start_ms, self._end_ms)
        )
        alike: dict[tuple[str, str, int], tuple[dict[Key, int], list[str]]] = {}
        for gpu in gpus:
            start_ms, end_ms = max(gpu.from_ms, self._start_ms), min(end_of(gpu.until_ms), self._end_ms)
            if start_ms >= end_ms:
                continue
            own = self._sums_of(gpu, node, start_ms, end_ms)
            self._capacity_ms += end_ms - start_ms
            alike.setdefault((gpu.model, gpu.cohort_key, id(own)), (own, []))[1].append(gpu.gpu_uuid)
        for (model, cohort_key, _), (own, uuids) in alike.items():
            for key, num_ms in own.items():
                yield self._heading(node, model, cohort_key, key), uuids, num_ms

    def require_all(self, capacity_ms: int) -> None:
        if capacity_ms != self._capacity_ms:
            raise UnbalancedError(f"I27: entries have {capacity_ms} ms of {self._capacity_ms} ms")

    def _heading(self, node: Node, model: str, cohort_key: str, key: Key) -> Heading:
        attempt = self._facts.attempts.get(key.attempt_id)
        whose = (attempt.job_id, attempt.tenant_id, attempt.tier, attempt.job_class) if attempt else ()
        return Heading(node.node_id, *key, model, cohort_key, node.rack, node.site, *whose)

    def _sums_of(self, gpu: Gpu, node: Node, start_ms: int, end_ms: int) -> dict[Key, int]:
        """Return the milliseconds of each key: the same mapping for GPUs that are alike."""
        uses = parts_of_uses(gpu.uses, self._ended_ms, start_ms, end_ms)
        parts: list[Part] = [(use, self._silences) for use in uses]
        for empty in empty_parts(uses, start_ms, end_ms):
            waits = self._waits_for(node.group)
            parts.append((empty, when_empty(gpu, node, waits, *empty)))
        key = tuple(parts)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = self._added(key)
            if sum(found.values()) != end_ms - start_ms:
                raise UnbalancedError(f"I27: GPU {gpu.gpu_uuid} has {found} in {start_ms} to {end_ms}")
        return found

    def _added(self, parts: tuple[Part, ...]) -> dict[Key, int]:
        found: dict[Key, int] = {}
        for part in parts:
            own = self._of_part.get(part)
            if own is None:
                own = self._of_part[part] = sums(self._settled(*part))
            for key, num_ms in own.items():
                found[key] = found.get(key, 0) + num_ms
        return found

    def _settled(self, time: UsePart | Pair, cuts: tuple[Within, ...]) -> Iterable[Claim]:
        if not isinstance(time, UsePart):
            return settle(as_claims(cuts), *time)
        if time.attempt_id not in self._facts.attempts:
            return [Claim(Account.UNEXPLAINED, time.start_ms, time.end_ms, time.attempt_id, UNKNOWN_ATTEMPT)]
        if time.is_cleaning:
            return settle(self._cleaning(time, cuts), time.start_ms, time.end_ms)
        return _clipped(self._timeline(time.attempt_id, cuts), time.start_ms, time.end_ms)

    def _timeline(self, attempt_id: str, silences: tuple[Within, ...]) -> list[Claim]:
        """Return the attempt's time in the whole window, on hosts with these silences."""
        key = attempt_id, silences
        found = self._timelines.get(key)
        if found is None:
            own = self._claims.get(attempt_id)
            if own is None:
                own = self._claims[attempt_id] = claims_of(self._facts.attempts[attempt_id])
            claims = [*own.firm, *_in_contact(own.while_in_contact, attempt_id, silences)]
            found = self._timelines[key] = settle(claims, self._start_ms, self._end_ms)
        return found

    def _cleaning(self, part: UsePart, silences: tuple[Within, ...]) -> Iterator[Claim]:
        cause = self._facts.attempts[part.attempt_id].end_cause
        clean = Claim(
            Account.CLEANING, part.start_ms, part.end_ms, part.attempt_id, "" if cause is None else cause.value
        )
        return _in_contact((clean,), part.attempt_id, silences)

    def _waits_for(self, group: str) -> tuple[Wait, ...]:
        found = self._waits.get(group)
        if found is None:
            found = self._waits[group] = tuple(one for one in self._facts.waits if one.group in {"", group})
        return found


def _in_one_place(gpus: Sequence[Gpu]) -> Iterator[Gpu]:
    """Yield the GPUs, of which each is on one host at a time: since it came to the last one."""
    of_uuid: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        of_uuid.setdefault(gpu.gpu_uuid, []).append(gpu)
    for same in of_uuid.values():
        if len(same) == 1:
            yield same[0]
            continue
        places = sorted(set(same), key=_coming)
        for gpu, after in zip(places, (*places[1:], None), strict=True):
            until_ms = end_of(gpu.until_ms) if after is None else min(end_of(gpu.until_ms), after.from_ms)
            yield replace(gpu, until_ms=until_ms)


def _in_contact(claims: Iterable[Claim], attempt_id: str, silences: tuple[Within, ...]) -> Iterator[Claim]:
    """Yield the claims outside of the silences, and the silences."""
    silent = joined((one.start_ms, one.end_ms) for one in silences)
    for one in claims:
        for start_ms, end_ms in without(one.start_ms, one.end_ms, silent):
            yield Claim(one.account, start_ms, end_ms, one.attempt_id, one.cause, one.evidence)
    for each in silences:
        yield Claim(each.account, each.start_ms, each.end_ms, attempt_id, each.cause, each.evidence)


def _clipped(timeline: Sequence[Claim], start_ms: int, end_ms: int) -> Iterator[Claim]:
    for one in timeline:
        if one.start_ms < end_ms and one.end_ms > start_ms:
            from_ms, until_ms = max(one.start_ms, start_ms), min(one.end_ms, end_ms)
            yield Claim(one.account, from_ms, until_ms, one.attempt_id, one.cause, one.evidence)


def _begun(one: Period) -> tuple[int, int, str, tuple[str, ...]]:
    return one.start_ms, end_of(one.end_ms), one.cause, one.evidence


def _coming(gpu: Gpu) -> tuple[int, str, str]:
    return gpu.from_ms, gpu.node_id, repr(gpu)


def _place(gpu: Gpu) -> tuple[str, str, int]:
    return gpu.node_id, gpu.gpu_uuid, gpu.from_ms


def _node_id(gpu: Gpu) -> str:
    return gpu.node_id
