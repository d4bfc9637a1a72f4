"""A port whose counters show a bad link. ``nic_repeats`` counts such findings. Source: NVSentinel's NIC monitor.

Two counters are reported and not judged: ``port_rcv_remote_physical_errors`` counts packets that a switch marked as
broken before (the fault is on another link, whose port counts it itself), and ``rx_dropped`` also counts frames without
a receiver (of another VLAN or protocol), so a rise of it is no fault.
"""

from typing import Final

from health.detectors.detector import About, Findings, SignalDetector
from health.detectors.ports import port_counters
from health.detectors.readings import rate_of
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "port_degraded"
ABOUT: Final = About(
    "a port's counters show a bad link; `nic_repeats` counts such findings", "NVSentinel NIC monitor", Severity.WARNING
)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    limits = policy.detectors.port_degraded
    rates = {
        "symbol_errors_per_s": (rate_of(signal, "symbol_error", 1.0), limits.symbol_errors_per_s),
        "recoveries_per_minute": (rate_of(signal, "link_error_recovery", 60.0), limits.recoveries_per_minute),
        "slow_restarts_per_s": (rate_of(signal, "roce_slow_restart", 1.0), limits.slow_restarts_per_s),
        "carrier_changes": (signal.values.get("carrier_changes"), limits.carrier_changes_max),
        "receive_errors_per_s": (rate_of(signal, "port_rcv_errors", 1.0), limits.receive_errors_per_s),
        "frame_errors_per_s": (
            port_counters.rate_of_all(signal, "rx_errors", "tx_errors"),
            limits.receive_errors_per_s,
        ),
    }
    over = {name: rate for name, (rate, limit) in rates.items() if rate is not None and rate > limit}
    return port_counters.risen(NAME, signal, Severity.WARNING, policy, over)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.PORT_RATES,), ABOUT, Nature.RATE)
