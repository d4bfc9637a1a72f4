"""Small messages between two hosts, lost or late. Our own numbers. Either host may be at fault, so it is watched."""

from typing import Final

from health.detectors.detector import About, Findings, SignalDetector, signal_finding
from health.detectors.readings import name_in
from muster.domain.evidence.findings import EventKind, Finding, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "pair_probe"
ABOUT: Final = About("messages to another host are lost or late", "our own numbers", Severity.WARNING)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    limits, peer, found = policy.detectors.pair_probe, name_in(signal), list[Finding]()
    sent, lost = signal.values.get("sent", 0), signal.values.get("lost", 0)
    if sent >= limits.sent_min and lost / sent > limits.lost_share:
        words, values = f"{lost / sent:.1%} of messages to {peer} were lost", {"share": lost / sent}
        key = f"{NAME}:loss:{peer}"
        found.append(signal_finding(NAME, signal, key, Severity.WARNING, policy, words, values=values))
    p99_us = signal.values.get("round_trip_p99_us", 0)
    if p99_us > limits.round_trip_p99_us:
        words, values = f"messages to {peer} take {p99_us / 1000:.1f} ms there and back (p99)", {"p99_us": p99_us}
        key = f"{NAME}:latency:{peer}"
        found.append(signal_finding(NAME, signal, key, Severity.WARNING, policy, words, values=values))
    return tuple(found)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.PAIR_PROBE,), ABOUT, Nature.RATE)
