"""Packets of a port that are discarded, lost, or not answered. Source: NVSentinel's NIC monitor.

It may be congestion, or a program on another host that died: no repetition of it keeps work off a node.
"""

from typing import Final

from health.detectors.detector import About, Findings, SignalDetector
from health.detectors.ports import port_counters
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "port_transport"
ABOUT: Final = About(
    "packets of a port are discarded, lost, or not answered: congestion, or another host",
    "NVSentinel NIC monitor; lost packets: our own number",
    Severity.WARNING,
)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    limits = policy.detectors.port_transport
    rates = {
        "discards_per_s": (port_counters.rate_of_all(signal, "port_xmit_discards"), limits.discards_per_s),
        "ack_timeouts_per_s": (port_counters.rate_of_all(signal, "local_ack_timeout_err"), limits.ack_timeouts_per_s),
        "lost_packets_per_s": (
            port_counters.rate_of_all(signal, "out_of_sequence", "packet_seq_err"),
            limits.lost_packets_per_s,
        ),
    }
    over = {name: rate for name, (rate, limit) in rates.items() if rate > limit}
    return port_counters.risen(NAME, signal, Severity.WARNING, policy, over)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.PORT_RATES,), ABOUT, Nature.RATE)
