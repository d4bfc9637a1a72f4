"""Ports of a node: down, flapping, and counters that rise. Sources: gpud (down 4 min, flaps of 25 s), NVSentinel's
NIC monitor (counters).

They are about the node: it takes nothing new while they last, and no GPU is quarantined. A plain Ethernet port may be
one that nobody uses: it is only watched. A port is down only if it was seen up before: one without a cable never was.

What is lost between ports may be congestion, or a program on another host that died: no repetition of it holds a node
(``port_transport``). Two counters are told and not judged: ``port_rcv_remote_physical_errors`` counts packets that a
switch marked as broken before (the fault is on another link, whose port counts it itself), and ``rx_dropped`` counts
what nobody listens to as well (frames of another VLAN or protocol), so a rise of it is no fault.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, Tells, signal_finding
from health.detectors.readings import has, name_in, rate_of
from health.weightless import outlasting
from muster.domain.evidence import EventKind, GpuSignal, Severity
from muster.domain.health_policy import HealthPolicy

DOWN: Final = "port_down"
FLAP: Final = "port_flap"
FATAL: Final = "port_fatal"
DEGRADED: Final = "port_degraded"
TRANSPORT: Final = "port_transport"
DOWN_ABOUT: Final = About(
    "an InfiniBand or RoCE port is down for 4 minutes; a plain Ethernet port (warning)", "gpud", Severity.DEGRADED
)
FLAP_ABOUT: Final = About("a port was down for 25 s and came back; `port_flaps` counts them", "gpud", Severity.INFO)
FATAL_ABOUT: Final = About("a port's counter rose that never should", "NVSentinel NIC monitor", Severity.DEGRADED)
DEGRADED_ABOUT: Final = About(
    "a port's counters tell of a bad link; `nic_repeats` counts them", "NVSentinel NIC monitor", Severity.WARNING
)
TRANSPORT_ABOUT: Final = About(
    "packets of a port are discarded, lost on their way, or not answered: congestion, or another host",
    "NVSentinel NIC monitor; lost packets: a number of ours",
    Severity.WARNING,
)
_ACTIVE: Final = 4
_DISABLED: Final = 3
_FATAL_COUNTERS: Final = (
    "link_downed",
    "excessive_buffer_overrun_errors",
    "local_link_integrity_errors",
    "rnr_nak_retry_err",
)


def judge_down(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """A port that somebody disabled is not down, nor is one that nobody saw up."""
    values, port = signal.values, name_in(signal)
    if _is_up_or_disabled(signal) or not values.get("was_active", 0):
        return NO_FINDINGS
    is_fabric = not values.get("is_ethernet", 0) or "/" in port
    severity = Severity.DEGRADED if is_fabric else Severity.WARNING
    pending = outlasting(signal, policy.detectors.port_down.after_s)
    return (signal_finding(DOWN, signal, f"{DOWN}:{port}", severity, policy, f"port {port} is down", values=pending),)


def _is_up_or_disabled(signal: GpuSignal) -> bool:
    """Of RoCE nobody can tell that it is disabled: mlx5 reads so wherever the carrier is lost."""
    values = signal.values
    is_roce = values.get("is_ethernet", 0) > 0 and "/" in name_in(signal)
    return values.get("state", _ACTIVE) >= _ACTIVE or (values.get("physical_state") == _DISABLED and not is_roce)


def tells_of_down(signal: GpuSignal) -> tuple[str, ...]:
    """Of a port that is down nothing where it is not known to have been up: its agent may be a new one."""
    is_told = has(signal, "state") and (_is_up_or_disabled(signal) or signal.values.get("was_active", 0) > 0)
    return (f"{DOWN}:{name_in(signal)}",) if is_told else ()


def judge_flap(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    was_down_s, port = signal.values.get("was_down_s", 0), name_in(signal)
    if signal.values.get("state") != _ACTIVE or was_down_s < policy.detectors.port_flap.least_s:
        return NO_FINDINGS
    words = f"port {port} was down for {was_down_s:.0f} s"
    values = {"was_down_s": was_down_s}
    return (signal_finding(FLAP, signal, f"{FLAP}:{port}", Severity.INFO, policy, words, values=values),)


def judge_fatal(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    rises = {name: signal.values[name] for name in _FATAL_COUNTERS if signal.values.get(name, 0) > 0}
    symbols = rate_of(signal, "symbol_error", 3600.0)
    if symbols is not None and symbols > policy.detectors.port_fatal.symbol_errors_per_hour:
        rises["symbol_errors_per_hour"] = symbols
    return _risen(FATAL, signal, Severity.DEGRADED, policy, rises)


def judge_degraded(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    limits = policy.detectors.port_degraded
    rates = {
        "symbol_errors_per_s": (rate_of(signal, "symbol_error", 1.0), limits.symbol_errors_per_s),
        "recoveries_per_minute": (rate_of(signal, "link_error_recovery", 60.0), limits.recoveries_per_minute),
        "slow_restarts_per_s": (rate_of(signal, "roce_slow_restart", 1.0), limits.slow_restarts_per_s),
        "carrier_changes": (signal.values.get("carrier_changes"), limits.carrier_changes_max),
        "receive_errors_per_s": (rate_of(signal, "port_rcv_errors", 1.0), limits.receive_errors_per_s),
        "frame_errors_per_s": (_rate_of_all(signal, "rx_errors", "tx_errors"), limits.receive_errors_per_s),
    }
    over = {name: rate for name, (rate, limit) in rates.items() if rate is not None and rate > limit}
    return _risen(DEGRADED, signal, Severity.WARNING, policy, over)


def judge_transport(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    limits = policy.detectors.port_transport
    rates = {
        "discards_per_s": (_rate_of_all(signal, "port_xmit_discards"), limits.discards_per_s),
        "ack_timeouts_per_s": (_rate_of_all(signal, "local_ack_timeout_err"), limits.ack_timeouts_per_s),
        "lost_packets_per_s": (_rate_of_all(signal, "out_of_sequence", "packet_seq_err"), limits.lost_packets_per_s),
    }
    over = {name: rate for name, (rate, limit) in rates.items() if rate > limit}
    return _risen(TRANSPORT, signal, Severity.WARNING, policy, over)


def _rate_of_all(signal: GpuSignal, *names: str) -> float:
    """A second, of several counters of one kind."""
    return sum(rate_of(signal, name, 1.0) or 0.0 for name in names)


def _risen(name: str, signal: GpuSignal, severity: Severity, policy: HealthPolicy, rises: dict[str, float]) -> Findings:
    if not rises:
        return NO_FINDINGS
    port = name_in(signal)
    told = ", ".join(f"{counter.replace('_', ' ')} {rise:.0f}" for counter, rise in rises.items())
    return (signal_finding(name, signal, f"{name}:{port}", severity, policy, f"port {port}: {told}", values=rises),)


DOWN_DETECTOR: Final = SignalDetector(
    DOWN, 1, judge_down, (EventKind.PORT_STATE,), DOWN_ABOUT, Tells.STATE, tells_of_down
)
FLAP_DETECTOR: Final = SignalDetector(FLAP, 1, judge_flap, (EventKind.PORT_STATE,), FLAP_ABOUT)
FATAL_DETECTOR: Final = SignalDetector(FATAL, 1, judge_fatal, (EventKind.PORT_RATES,), FATAL_ABOUT, Tells.RATE)
DEGRADED_DETECTOR: Final = SignalDetector(
    DEGRADED, 1, judge_degraded, (EventKind.PORT_RATES,), DEGRADED_ABOUT, Tells.RATE
)
TRANSPORT_DETECTOR: Final = SignalDetector(
    TRANSPORT, 1, judge_transport, (EventKind.PORT_RATES,), TRANSPORT_ABOUT, Tells.RATE
)
