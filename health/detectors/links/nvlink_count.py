"""NVLinks compared with the GPU's model: fewer links than its board has, or slower links.

Sources: NVSentinel and DCGM for links a board (12 of an A100, 18 of an H100, H200 and B200) and for the raw rate of a
link (26.5625 GB/s of Hopper, 53.125 of Blackwell, of which 0.94 are usable); NVIDIA's A100 data sheet (25 GB/s). Boards
for a PCIe slot are joined by bridges, two or none, as their owner chooses: nothing is expected of them. Like all of the
fabric it weighs once it has outlasted ``health.warm_up.outlast_s``.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.load.heat import limit_of
from health.detectors.readings import has
from health.evidence.suppression import outlasting
from muster.domain.evidence.findings import EventKind, Finding, GpuSignal, Severity
from muster.domain.evidence.state_readings import words_in
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "nvlink_count"
LINKS: Final = "nvlink_count:links"
RATE: Final = "nvlink_count:rate"
ABOUT: Final = About(
    "a GPU has fewer NVLinks than its model (degraded), or one that is slower (warning)",
    "NVSentinel; DCGM",
    Severity.DEGRADED,
)
_MB_PER_GB: Final = 1000


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return the findings, none where the agent does not report the model."""
    rule, model = policy.detectors.nvlink_count, words_in(signal.text).get("model", "").replace("_", " ")
    links, mb_per_s = signal.values.get("nvlink_links"), signal.values.get("nvlink_mb_per_s")
    if not model or links is None:
        return NO_FINDINGS
    found, pending = list[Finding](), outlasting(signal, policy.warm_up.outlast_s)
    expected = limit_of(model, 0, rule.links_of)
    if links < expected:
        words = f"the driver lists {links:.0f} NVLinks, the board has {expected:.0f}"
        values = {"links": links, "expected_links": expected}
        found.append(
            signal_finding(NAME, signal, LINKS, Severity.DEGRADED, policy, words, values=values, pending=pending)
        )
    usable_mb_per_s = limit_of(model, 0, rule.gb_per_s_of) * rule.usable_fraction * _MB_PER_GB
    if mb_per_s is not None and mb_per_s < usable_mb_per_s:
        words = f"an NVLink of {mb_per_s:.0f} MB/s, {usable_mb_per_s:.0f} at least on this board"
        values = {"mb_per_s": mb_per_s, "least_mb_per_s": usable_mb_per_s}
        found.append(
            signal_finding(NAME, signal, RATE, Severity.WARNING, policy, words, values=values, pending=pending)
        )
    return tuple(found)


def handles(signal: GpuSignal) -> tuple[str, ...]:
    links = (LINKS,) if has(signal, "nvlink_links") else ()
    return (*links, RATE) if has(signal, "nvlink_mb_per_s") else links


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
