"""The table of rules about repetitions, and its entry point, called whenever evidence is new or stated again."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.memory import corrected_remaps, retired_pages
from health.detectors.node import nic_driver
from health.detectors.ports import port_degraded, port_flap
from health.detectors.repeats import after_diagnosis, cleanup_alone, link_bit_repeats, special_rules, verdict_repeats
from health.detectors.repeats.repeat import NVIDIA, NVSENTINEL, TIMES, Repeat, Seen, counts_as_time
from health.detectors.repeats.shapes import HOLD, again, alone, of_port
from health.evidence.index import EvidenceIndex
from health.evidence.state import code_of
from health.xid.error_text import MMU_FAULT
from health.xid.kernel_log import OFF_THE_BUS
from muster.domain.evidence.findings import Evidence, Severity, Suppression
from muster.domain.policy.gpu_detectors import RepeatPolicy
from muster.domain.policy.health import HealthPolicy


def _num_times(evidence: Iterable[Evidence]) -> int:
    return int(sum(each.values.get(TIMES, 1.0) for each in evidence))


REPEAT_RULES: Final[tuple[Repeat, ...]] = (
    # Programs cause these XIDs at will: they ask for a diagnosis and weigh nothing.
    alone(
        after_diagnosis.MMU_FAULTS,
        lambda policies: policies.mmu_fault_repeats,
        (MMU_FAULT,),
        "XID 31",
        About("XID 31 again on one GPU alone", NVSENTINEL, Severity.INFO),
    ),
    Repeat(
        special_rules.SM_EXCEPTIONS,
        special_rules.sm_exceptions,
        About("XID 13 again in one TPC", NVSENTINEL, Severity.INFO),
    ),
    alone(
        after_diagnosis.COPY_ENGINE_FAULTS,
        lambda policies: policies.copy_engine_repeats,
        after_diagnosis.COPY_ENGINES,
        "an XID of a copy engine",
        About("an XID of a copy engine again on one GPU alone", NVIDIA, Severity.INFO),
    ),
    # The diagnosis passed and they continue: of several programs they are the GPU's.
    Repeat(
        after_diagnosis.NAME,
        after_diagnosis.judge,
        About(
            "a program's XIDs again after a passed diagnosis",
            "NVIDIA; our own numbers",
            Severity.DEGRADED,
        ),
    ),
    # Faults of the GPU.
    Repeat(
        link_bit_repeats.NAME,
        link_bit_repeats.judge,
        About("a bit of XID 74 again on one link", NVIDIA, Severity.CONDEMNING),
    ),
    Repeat(
        special_rules.GSP,
        special_rules.gsp,
        About("XID 119 or 120 again (warning), and again", NVIDIA, Severity.CONDEMNING),
        is_hold=True,
    ),
    again(
        "bus_repeats",
        lambda policies: policies.bus_repeats,
        (OFF_THE_BUS,),
        "off the bus (XID 79)",
        About("XID 79, or a lost GPU, again", NVIDIA, Severity.CONDEMNING),
    ),
    again(
        "reset_repeats",
        lambda policies: policies.reset_repeats,
        (136, 143),
        "XID 136 or 143",
        About("XID 136 or 143 again", NVIDIA, Severity.CONDEMNING),
    ),
    Repeat(
        cleanup_alone.NAME,
        cleanup_alone.judge,
        About("XID 45 and no other XID within 5 s", NVIDIA, Severity.INFO),
    ),
    Repeat(
        special_rules.FATAL,
        special_rules.fatal,
        About("5 bursts of fatal XIDs in a day", NVSENTINEL, Severity.CONDEMNING),
        is_hold=True,
    ),
    Repeat(retired_pages.NAME, special_rules.double_bit_pages, retired_pages.ABOUT),
    Repeat(corrected_remaps.NAME, special_rules.remapped_rows, corrected_remaps.ABOUT),
    # Verdicts on jobs: reported, and in shadow by default.
    Repeat(verdict_repeats.NAME, verdict_repeats.judge, verdict_repeats.ABOUT),
    # Faults of the node's network.
    of_port(
        "port_flaps",
        lambda policies: policies.port_flaps,
        port_flap.NAME,
        "flapped",
        About("a port flaps 3 times", "gpud", Severity.DEGRADED),
        times_in=len,
    ),
    Repeat(
        special_rules.NIC_DRIVER,
        special_rules.nic_driver_faults,
        About("faults of a node's network cards, by their driver, 3 times in an hour", NVSENTINEL, Severity.DEGRADED),
    ),
    of_port(
        "nic_repeats",
        lambda policies: policies.nic_repeats,
        port_degraded.NAME,
        "had a bad link",
        About("a bad link 3 times in an hour", NVSENTINEL, Severity.DEGRADED),
        times_in=_num_times,
    ),
)
_SOURCE_DETECTORS: Final = frozenset(
    {
        port_flap.NAME,
        port_degraded.NAME,
        retired_pages.NAME,
        corrected_remaps.NAME,
        nic_driver.NAME,
        *verdict_repeats.SOURCES,
    }
)
HOLDS: Final = frozenset(f"{rule.name}:{HOLD}" for rule in REPEAT_RULES if rule.is_hold)
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
    newest: Evidence,
    known: EvidenceIndex,
    elsewhere: Callable[[], Iterable[Evidence]],
    policy: HealthPolicy,
    diagnosed_ms: Callable[[], int | None],
) -> Findings:
    """Return the findings about repetitions that follow from ``newest`` and all that is ``known`` of its place.

    ``elsewhere``: gives evidence of the other GPUs of its node. ``diagnosed_ms``: gives when its GPU's newest passed
    diagnosis began. A rule in shadow counts what it has found itself, so
    that it shows all that it would find; no other rule counts that.
    """
    own = newest.detector if Suppression.SHADOW in newest.suppressed_by else None
    if not counts_as_time(newest, own) or not (newest.detector in _SOURCE_DETECTORS or code_of(newest) is not None):
        return NO_FINDINGS
    seen = Seen(newest, known, elsewhere, policy, own, diagnosed_ms)
    return tuple(finding for rule in REPEAT_RULES if own in {None, rule.name} for finding in rule.judge(seen))
