"""What it does to the evidence that a finding is noted: joining, what it replaces, and what its repetition means.

Pure, and the same in the judge and in a replay.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from health.authority import overruled_by
from health.detectors import fabric_health, fabric_state, nvlink_count, nvlink_down, nvlink_errors, xid
from health.detectors.cleanup import explained_by
from health.detectors.modes import in_mode
from health.detectors.repeats import TIMES, repeats_of
from health.detectors.xid import CODE
from health.evidence import join, lessened_by, superseded_by
from health.weightless import MAINTENANCE, aside
from muster.domain.evidence import Evidence, Finding
from muster.domain.health_policy import HealthPolicy
from muster.domain.ids import EvidenceId

_OF_THE_NODE: Final = frozenset(
    {
        nvlink_count.NAME,
        nvlink_down.NAME,
        nvlink_down.TO_NOTHING,
        fabric_state.NAME,
        fabric_health.NAME,
        nvlink_errors.CRC,
        nvlink_errors.WINDOWS,
        nvlink_errors.RISES,
    }
)
"""Rules about a GPU whose findings come of work on its node or fabric. So do the XIDs of NVLinks."""
_COUNTED: Final = (TIMES, CODE)
"""Keys in ``values`` whose change may make a repetition of it."""


def _nothing_elsewhere() -> Iterable[Evidence]:
    return ()


@dataclass(frozen=True, slots=True)
class Place:
    """What is known where a finding belongs.

    ``known``: evidence of its GPU, or of its node where it is about none, by id; it is written on. ``elsewhere``: asked
    for evidence of the node's other GPUs only if a rule needs it. ``is_in_maintenance``: somebody works on the node.
    ``is_in_window``: in a time that a person declared, so that nothing of the node is judged at all.
    """

    known: dict[EvidenceId, Evidence]
    elsewhere: Callable[[], Iterable[Evidence]] = _nothing_elsewhere
    is_in_maintenance: bool = False
    is_in_window: bool = False


@dataclass(frozen=True, slots=True)
class Noted:
    evidence: Evidence
    is_new: bool


def note(
    finding: Finding, place: Place, policy: HealthPolicy, now_ms: int, new_id: Callable[[], EvidenceId]
) -> Iterator[Noted]:
    """The evidence that is new or otherwise than before, in the order in which it became so."""
    if place.is_in_window or (place.is_in_maintenance and _comes_of_work(finding)):
        finding = aside(finding, MAINTENANCE)
    for lessened in lessened_by(finding, tuple(place.known.values())):
        place.known[lessened.id] = lessened
        yield Noted(lessened, is_new=False)
    waiting = [finding]
    while waiting:
        joined = join(waiting.pop(0), place.known.values(), policy, now_ms, new_id())
        evidence, before = joined.evidence, place.known.get(joined.evidence.id)
        if evidence == before:
            continue
        place.known[evidence.id] = evidence
        yield Noted(evidence, joined.is_new)
        if joined.is_new:
            yield from _set_aside_by(evidence, place, policy)
        if before is None or _may_repeat(before, evidence):
            waiting += in_mode(repeats_of(evidence, place.known.values(), place.elsewhere, policy), policy)


def _may_repeat(before: Evidence, now: Evidence) -> bool:
    """Whether what was told besides is something that is counted: another time, a code, or a bit of an XID 74."""
    told = (*_COUNTED, *filter(xid.is_bit_key, now.values))
    return any(before.values.get(key) != now.values.get(key) for key in told)


def _set_aside_by(newest: Evidence, place: Place, policy: HealthPolicy) -> Iterator[Noted]:
    for rule in (superseded_by, overruled_by, explained_by):
        for replaced in rule(newest, tuple(place.known.values()), policy):
            place.known[replaced.id] = replaced
            yield Noted(replaced, is_new=False)


def _comes_of_work(finding: Finding) -> bool:
    if finding.gpu_uuid is None or finding.detector in _OF_THE_NODE:
        return True
    return finding.detector == xid.NAME and xid.is_of_links(finding.values)
