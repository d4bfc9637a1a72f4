"""Merging a finding into the evidence: what it joins, what it replaces, and what its repetition means.

Pure, and the same in the judge and in a replay.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from health.detectors.gpu import freshness, xid
from health.detectors.links import fabric_health, fabric_state, nvlink_count, nvlink_down, nvlink_errors, p2p
from health.detectors.modes import in_mode
from health.detectors.node import gpu_count
from health.detectors.repeats.cleanup_alone import explained_by
from health.detectors.repeats.repeat import TIMES
from health.detectors.repeats.rules import repeats_of
from health.evidence.evidence import join, lessened_by, near, superseded_by
from health.evidence.index import EVERYTHING, EvidenceIndex, of_fault
from health.evidence.same_fault import requested_action_in
from health.evidence.state import CODE
from health.evidence.suppression import aside
from health.remedy.fault_precedence import overruled_by
from muster.domain.evidence.findings import Evidence, Finding, Suppression
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import HealthPolicy

_OF_THE_NODE: Final = frozenset(
    {
        freshness.NAME,
        nvlink_count.NAME,
        nvlink_down.NAME,
        nvlink_down.TO_NOTHING,
        p2p.NAME,
        fabric_state.NAME,
        fabric_health.NAME,
        nvlink_errors.CRC,
        nvlink_errors.WINDOWS,
        nvlink_errors.RISES,
    }
)
"""Rules about a GPU whose findings may result from work on its node, driver or fabric. So may the XIDs of NVLinks."""
_COUNTED: Final = (TIMES, CODE)
"""Keys in ``values`` whose change may make the evidence a repetition."""


def _nothing_elsewhere() -> Iterable[Evidence]:
    return ()


def _never() -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """The evidence and circumstances of the place that a finding belongs to.

    ``known``: evidence of its GPU, or of its node where it is about no GPU; it is written to. ``elsewhere``: called for
    evidence of the node's other GPUs only if a rule needs it. ``is_in_maintenance``: people work on the node.
    ``is_in_window``: in a time that a person declared, so that nothing of the node is judged at all.
    ``diagnosed_ms``: called only if a rule needs it; gives when the newest passed diagnosis of the GPU began.
    """

    known: EvidenceIndex
    elsewhere: Callable[[], Iterable[Evidence]] = _nothing_elsewhere
    is_in_maintenance: bool = False
    is_in_window: bool = False
    diagnosed_ms: Callable[[], int | None] = _never


@dataclass(frozen=True, slots=True)
class Merged:
    """Evidence that changed. ``before``: its former state, None where it is new."""

    evidence: Evidence
    before: Evidence | None

    @property
    def is_new(self) -> bool:
        return self.before is None


def merge(
    finding: Finding, place: Place, policy: HealthPolicy, now_ms: int, new_id: Callable[[], EvidenceId]
) -> Iterator[Merged]:
    """Yield the evidence that is new or changed, in the order of the changes."""
    if place.is_in_window or (place.is_in_maintenance and _comes_of_work(finding)):
        finding = aside(finding, Suppression.MAINTENANCE)
    known = place.known
    if finding.detector == gpu_count.NAME:
        yield from _kept(known, lessened_by(finding, known.on(of_fault(finding.fault_key))))
    waiting = [finding]
    while waiting:
        found = waiting.pop(0)
        evidence = join(found, near(found, known, policy, now_ms), policy, now_ms, new_id()).evidence
        before = known.get(evidence.id)
        if evidence == before:
            continue
        known.put(evidence)
        yield Merged(evidence, before)
        if before is None:
            yield from _set_aside_by(evidence, known, policy)
        if before is None or _may_repeat(before, evidence):
            waiting += in_mode(repeats_of(evidence, known, place.elsewhere, policy, place.diagnosed_ms), policy)


def _may_repeat(before: Evidence, now: Evidence) -> bool:
    """Return whether the change is one that rules count: another time, a code, or a bit of an XID 74."""
    told = (*_COUNTED, *filter(xid.is_bit_key, now.values))
    return any(before.values.get(key) != now.values.get(key) for key in told)


def _set_aside_by(newest: Evidence, known: EvidenceIndex, policy: HealthPolicy) -> Iterator[Merged]:
    if xid.HAS_WORDS in newest.values:
        yield from _kept(known, superseded_by(newest, known.on(of_fault(newest.fault_key)), policy))
    yield from _kept(known, explained_by(newest, known, policy))
    if requested_action_in(newest.fault_key) is not None:
        # A request for an action follows the faults it is about, but not by long: only recent evidence is compared.
        since_ms = newest.onset_ms - int(max(policy.evidence.dcgm_window_s, policy.evidence.counter_window_s) * 1000)
        told = known.on(EVERYTHING, since_ms)
        words = known.words_of_the_driver(since_ms)
    else:
        told, words = [newest], known.words_of_the_driver(newest.last_seen_ms)
    if words:
        together = {each.id: each for each in (*told, *words)}
        yield from _kept(known, overruled_by(newest, together.values(), policy))


def _kept(known: EvidenceIndex, changed: Iterable[Evidence]) -> Iterator[Merged]:
    for each in changed:
        before = known.get(each.id)
        known.put(each)
        yield Merged(each, before)


def _comes_of_work(finding: Finding) -> bool:
    if finding.gpu_uuid is None or finding.detector in _OF_THE_NODE:
        return True
    return finding.detector == xid.NAME and xid.is_of_links(finding.values)
