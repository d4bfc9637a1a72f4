"""Events: the rules for each kind, their findings, and the faults that an event shows to be over."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from health.detectors.detector import NO_FINDINGS, Closing, Findings, SignalDetector
from health.detectors.gpu import gpu_lost, gpu_settings, inforom, xid
from health.detectors.links import (
    fabric_health,
    fabric_state,
    nvlink_count,
    nvlink_down,
    nvlink_errors,
    p2p,
    pcie_errors,
    pcie_link,
    pcie_replays,
    sxid,
)
from health.detectors.load import idle_busy, power_limit, throttle_seconds
from health.detectors.memory import corrected_errors, remap_banks, retired_pages, sram_threshold, unrepairable_memory
from health.detectors.modes import in_mode
from health.detectors.node import (
    gpu_count,
    host_clock,
    host_log,
    host_network,
    host_state,
    nic_driver,
    node_mismatch,
    pair_probe,
)
from health.detectors.ports import port_degraded, port_down, port_fatal, port_flap, port_inventory, port_transport
from health.evidence.suppression import is_weightless
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

SIGNAL_DETECTORS: Final[tuple[SignalDetector, ...]] = (
    xid.DETECTOR,
    sxid.DETECTOR,
    nic_driver.DETECTOR,
    host_log.DETECTOR,
    gpu_lost.SIGNAL_DETECTOR,
    gpu_count.DETECTOR,
    gpu_count.STATE_DETECTOR,
    sram_threshold.DETECTOR,
    remap_banks.DETECTOR,
    retired_pages.DETECTOR,
    inforom.DETECTOR,
    unrepairable_memory.DETECTOR,
    gpu_settings.DETECTOR,
    power_limit.DETECTOR,
    pcie_link.DETECTOR,
    nvlink_count.DETECTOR,
    nvlink_down.DETECTOR,
    nvlink_down.TO_NOTHING_DETECTOR,
    p2p.DETECTOR,
    idle_busy.DETECTOR,
    fabric_state.DETECTOR,
    fabric_health.DETECTOR,
    throttle_seconds.DETECTOR,
    corrected_errors.DETECTOR,
    pcie_replays.DETECTOR,
    pcie_errors.DETECTOR,
    nvlink_errors.CRC_DETECTOR,
    nvlink_errors.WINDOWS_DETECTOR,
    nvlink_errors.RISES_DETECTOR,
    host_state.PRESSURE_DETECTOR,
    host_state.DISK_DETECTOR,
    host_state.DRIVERS_DETECTOR,
    node_mismatch.DETECTOR,
    host_clock.STATE_DETECTOR,
    host_clock.RATE_DETECTOR,
    host_network.DETECTOR,
    port_down.DETECTOR,
    port_inventory.COUNT_DETECTOR,
    port_inventory.RATE_DETECTOR,
    port_inventory.MISSING_DETECTOR,
    port_flap.DETECTOR,
    port_fatal.DETECTOR,
    port_degraded.DETECTOR,
    port_transport.DETECTOR,
    pair_probe.DETECTOR,
)
_OF_A_GPU: Final = frozenset({EventKind.GPU_STATE, EventKind.GPU_RATES})


def _by_kind() -> Mapping[EventKind, tuple[SignalDetector, ...]]:
    found: dict[EventKind, list[SignalDetector]] = defaultdict(list)
    for detector in SIGNAL_DETECTORS:
        for kind in detector.kinds:
            found[kind].append(detector)
    return {kind: tuple(detectors) for kind, detectors in found.items()}


_BY_KIND: Final = _by_kind()


def judge_signal(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return the findings of one event.

    The same event sent twice gives the same findings twice: callers drop known ``signal_id``s.
    """
    if signal.gpu_uuid is None and signal.kind in _OF_A_GPU:
        return NO_FINDINGS
    found = NO_FINDINGS
    for detector in _BY_KIND.get(signal.kind, ()):
        found += detector.judge(signal, policy)
    return in_mode(found, policy)


def alarms(findings: Findings) -> bool:
    """Return whether any finding condemns by itself and now: nothing is placed on its GPU until it is judged."""
    return any(each.severity is Severity.CONDEMNING and not is_weightless(each) for each in findings)


def closings_of(signal: GpuSignal, policy: HealthPolicy) -> tuple[Closing, ...]:
    """Return the standing faults that this event shows to be over, for ``health.evidence.evidence.close``."""
    if signal.kind is EventKind.GPU_FOUND:
        return (Closing(gpu_lost.NAME, signal.node_id, signal.gpu_uuid, signal.at_ms),)
    if signal.kind is EventKind.GPU_COUNT and signal.values.get("now", 0) > signal.values.get("before", 0):
        return (Closing(gpu_count.NAME, signal.node_id, None, signal.at_ms, signal.values["now"]),)
    closed = list[Closing]()
    for detector in _BY_KIND.get(signal.kind, ()):
        if detector.nature is not Nature.STATE:
            continue
        standing = {finding.fault_key for finding in detector.judge(signal, policy)}
        over = (key for key in detector.handles(signal) if key not in standing)
        # All GPUs that were there before have to be back, not all that the host enrolled with.
        found = signal.values.get("found_gpus") if detector.name == gpu_count.NAME else None
        closed += (Closing(key, signal.node_id, signal.gpu_uuid, signal.at_ms, found) for key in over)
    return tuple(closed)
