"""A port that is down. Source: gpud (4 minutes).

Like the other findings about ports it is about the node: it takes no new work while they last, and no GPU is
quarantined. A plain Ethernet port may be unused: it is only watched. A port is down only if it was seen up before: one
without a cable never was.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import PORT_ACTIVE, has, name_in
from health.evidence.suppression import outlasting
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "port_down"
ABOUT: Final = About(
    "an InfiniBand or RoCE port is down for 4 minutes; a plain Ethernet port (warning)", "gpud", Severity.DEGRADED
)
_DISABLED: Final = 3


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return the finding, none for a port that an operator disabled or that was never seen up."""
    values, port = signal.values, name_in(signal)
    if _is_up_or_disabled(signal) or not values.get("was_active", 0):
        return NO_FINDINGS
    is_fabric = not values.get("is_ethernet", 0) or "/" in port
    severity = Severity.DEGRADED if is_fabric else Severity.WARNING
    pending = outlasting(signal, policy.detectors.port_down.after_s)
    return (signal_finding(NAME, signal, f"{NAME}:{port}", severity, policy, f"port {port} is down", pending=pending),)


def _is_up_or_disabled(signal: GpuSignal) -> bool:
    """Return whether the port is up or disabled. A RoCE port never counts as disabled.

    mlx5 reports a RoCE port as disabled wherever the carrier is lost.
    """
    values = signal.values
    is_roce = values.get("is_ethernet", 0) > 0 and "/" in name_in(signal)
    return values.get("state", PORT_ACTIVE) >= PORT_ACTIVE or (
        values.get("physical_state") == _DISABLED and not is_roce
    )


def handles(signal: GpuSignal) -> tuple[str, ...]:
    """Return the fault key, none for a port that is down and not known to have been up: its agent may be a new one."""
    is_told = has(signal, "state") and (_is_up_or_disabled(signal) or signal.values.get("was_active", 0) > 0)
    return (f"{NAME}:{name_in(signal)}",) if is_told else ()


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.PORT_STATE,), ABOUT, Nature.STATE, handles)
