"""All rules about repetitions, and the entry point, which is called whenever evidence is new or stated again."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from health.detectors.detector import NO_FINDINGS, Findings
from health.detectors.memory import corrected_remaps, retired_pages
from health.detectors.node import nic_driver
from health.detectors.ports import port_degraded, port_flap
from health.detectors.repeats import (
    bus_repeats,
    cleanup_alone,
    copy_engine_repeats,
    corrected_remap_repeats,
    fatal_repeats,
    gsp_repeats,
    link_bit_repeats,
    mmu_fault_repeats,
    nic_driver_repeats,
    nic_repeats,
    port_flaps,
    reset_repeats,
    retired_page_repeats,
    sm_exception_repeats,
)
from health.detectors.repeats.repeat import Repeat, Seen, counts_as_time
from health.evidence.index import Known
from health.evidence.state import code_of
from muster.domain.evidence.findings import Evidence, Suppression
from muster.domain.policy.gpu_detectors import RepeatPolicy
from muster.domain.policy.health import HealthPolicy

RULES: Final[tuple[Repeat, ...]] = (
    mmu_fault_repeats.RULE,
    sm_exception_repeats.RULE,
    copy_engine_repeats.RULE,
    link_bit_repeats.RULE,
    gsp_repeats.RULE,
    bus_repeats.RULE,
    reset_repeats.RULE,
    cleanup_alone.RULE,
    fatal_repeats.RULE,
    retired_page_repeats.RULE,
    corrected_remap_repeats.RULE,
    port_flaps.RULE,
    nic_driver_repeats.RULE,
    nic_repeats.RULE,
)
_SOURCES: Final = frozenset(
    {port_flap.NAME, port_degraded.NAME, retired_pages.NAME, corrected_remaps.NAME, nic_driver.NAME}
)
HOLDS: Final = frozenset({gsp_repeats.HOLD, bus_repeats.HOLD, reset_repeats.HOLD, fatal_repeats.HOLD})
"""Fault keys that mean that no repair lasts."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Reach of the rules about repetitions: back in time, and the most times of one fault that a rule needs."""

    window_s: float
    times: int


def reach_of(policy: HealthPolicy) -> Reach:
    rules = [rule for _, rule in policy.detectors if isinstance(rule, RepeatPolicy)]
    others = policy.detectors.retired_pages.window_s, policy.detectors.corrected_remaps.window_s
    return Reach(max(*(rule.window_s for rule in rules), *others), max(rule.times for rule in rules))


def repeats_of(
    newest: Evidence, known: Known, elsewhere: Callable[[], Iterable[Evidence]], policy: HealthPolicy
) -> Findings:
    """Return the findings about repetitions that follow from ``newest`` and all that is ``known`` of its place.

    ``elsewhere``: gives evidence of the other GPUs of its node. A rule in shadow counts what it has found itself, so
    that it shows all that it would find; no other rule counts that.
    """
    own = newest.detector if Suppression.SHADOW in newest.suppressed_by else None
    if not counts_as_time(newest, own) or not (newest.detector in _SOURCES or code_of(newest) is not None):
        return NO_FINDINGS
    seen = Seen(newest, known, elsewhere, policy, own)
    return tuple(finding for rule in RULES if own in {None, rule.name} for finding in rule.judge(seen))
