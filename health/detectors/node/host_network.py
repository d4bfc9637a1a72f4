"""A host's own network counters: TCP sent again, packets dropped. Our own numbers; it is watched."""

from typing import Final

from health.detectors.detector import About, Findings, SignalDetector, signal_finding
from health.detectors.readings import rate_of
from muster.domain.evidence.findings import EventKind, Finding, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "host_network"
RETRANSMITS: Final = "host_network:retransmits"
DROPS: Final = "host_network:drops"
ABOUT: Final = About(
    "TCP segments are sent again, or packets dropped by the kernel", "our own numbers", Severity.WARNING
)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    limits, found = policy.detectors.host_network, list[Finding]()
    sent, again = signal.values.get("tcp_segments", 0), signal.values.get("tcp_retransmits", 0)
    if sent >= limits.segments_min and again / sent > limits.retransmit_share:
        words, values = f"{again / sent:.1%} of TCP segments were sent again", {"share": again / sent}
        found.append(signal_finding(NAME, signal, RETRANSMITS, Severity.WARNING, policy, words, values=values))
    per_s = (rate_of(signal, "softnet_dropped", 1.0) or 0) + (rate_of(signal, "udp_receive_errors", 1.0) or 0)
    if per_s > limits.drops_per_s:
        words, values = f"{per_s:.0f} packets a second were dropped", {"per_s": per_s}
        found.append(signal_finding(NAME, signal, DROPS, Severity.WARNING, policy, words, values=values))
    return tuple(found)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.HOST_RATES,), ABOUT, Nature.RATE)
