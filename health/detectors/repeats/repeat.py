"""Repetition rule: called for newly merged evidence, with all evidence of its place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from health.detectors.detector import About, Findings, counts_for_ms
from health.evidence.index import EvidenceIndex, Shelf, of_code
from health.evidence.state import code_of
from health.evidence.suppression import OVERRULED
from muster.domain.evidence.findings import Evidence, Finding, Severity, Suppression
from muster.domain.policy.gpu_detectors import RepeatPolicy
from muster.domain.policy.health import HealthPolicy

TIMES: Final = "times"
"""Key in ``values``: how often a rate was too high, or a fault occurred."""
BURST_MS: Final = 15_000
"""Occurrences that are closer together are one (NVSentinel: 15 s for XID 13)."""
VERSION: Final = 1
_NEVER_MS: Final = -(1 << 60)
NVIDIA: Final = "NVIDIA XID catalogue"
NVSENTINEL: Final = "NVSentinel analyzer"


@dataclass(frozen=True, slots=True)
class Seen:
    """Input of a rule. ``newest``: the evidence merged now; ``known``: all evidence of its GPU, or of its node.

    ``own``: the rule that found the newest, where that rule is in shadow: it alone counts what it has found itself.
    ``diagnosed_ms``: gives when the newest burn-in or field diagnosis of its GPU began that passed; None: none has.
    """

    newest: Evidence
    known: EvidenceIndex
    elsewhere: Callable[[], Iterable[Evidence]]
    policy: HealthPolicy
    own: str | None = None
    diagnosed_ms: Callable[[], int | None] = lambda: None

    def alike(
        self, window_s: float, shelf: Shelf, is_alike: Callable[[Evidence], bool] | None = None
    ) -> list[Evidence]:
        """Return the shelf's evidence within the window before the newest, the newest included, oldest first."""
        until_ms = self.newest.last_seen_ms
        found = self.known.on(shelf, until_ms - int(window_s * 1000) + 1, until_ms)
        return [each for each in found if counts_as_time(each, self.own) and (is_alike is None or is_alike(each))]

    def found(
        self, rule: str, severity: Severity, text: str, *, key: str = "", values: Mapping[str, float] | None = None
    ) -> Finding:
        """Return a finding of ``rule`` about the newest's GPU or node, with the newest's source and trust."""
        newest = self.newest
        return Finding(
            detector=rule,
            version=VERSION,
            fault_key=f"{rule}:{key}" if key else rule,
            gpu_uuid=newest.gpu_uuid,
            node_id=newest.node_id,
            severity=severity,
            trust=newest.trust,
            source=newest.sources[-1],
            onset_ms=newest.last_seen_ms,
            counts_for_ms=counts_for_ms(severity, self.policy, rule),
            summary=text,
            values=values or {},
        )


@dataclass(frozen=True, slots=True)
class Repeat:
    """One row of the table of rules.

    ``is_hold``: one of its findings means that no repair lasts, so that the board has to be held.
    """

    name: str
    judge: Callable[[Seen], Findings]
    about: About
    is_hold: bool = False

    @property
    def version(self) -> int:
        return VERSION


def counts_as_time(evidence: Evidence, in_shadow: str | None = None) -> bool:
    """Return whether the evidence counts as an occurrence.

    ``in_shadow``: the rule that counts, where it is in shadow.
    """
    why = evidence.suppressed_by
    if why:
        why -= OVERRULED
        if evidence.detector == in_shadow:
            why -= {Suppression.SHADOW}
    return not (evidence.is_dismissed or evidence.is_suspended or why)


def of_codes(seen: Seen, window_s: float, codes: Iterable[int]) -> list[Evidence]:
    """Return XIDs of ``codes`` within the window before the newest, oldest first."""
    found = [each for code in codes for each in seen.alike(window_s, of_code(code))]
    return sorted(found, key=lambda each: (each.last_seen_ms, each.id))


def num_bursts(evidence: Sequence[Evidence], policy: HealthPolicy, gap_ms: int = BURST_MS) -> int:
    """Return how often it occurred: an occurrence within the gap, or for hours after a sticky XID, is the same time.

    Evidence that holds several times itself (``TIMES``) counts by them.
    """
    rule = policy.detectors.fatal_repeats
    sticky_ms = int(rule.sticky_gap_s * 1000)
    bursts, last_ms, sticks_until_ms = 0, _NEVER_MS, dict[int | None, int]()
    for each in evidence:
        code, onset_ms = code_of(each), each.onset_ms
        is_same = onset_ms - last_ms <= gap_ms or onset_ms <= sticks_until_ms.get(code, _NEVER_MS)
        bursts += int(each.values.get(TIMES, 1.0)) - is_same
        last_ms = each.last_seen_ms
        if code in rule.sticky:
            sticks_until_ms[code] = last_ms + sticky_ms
    return bursts


def comes_again(seen: Seen, rule: RepeatPolicy, codes: Iterable[int]) -> int:
    """Return how often an XID of ``codes`` occurred, the newest being one of them; 0 where that is too seldom."""
    wanted = tuple(codes)
    if code_of(seen.newest) not in wanted:
        return 0
    times = num_bursts(of_codes(seen, rule.window_s, wanted), seen.policy)
    return times if times >= rule.times else 0
