"""Limits of a scan: detectors that need more time than it listened, or more than one host, each with the reason."""

from collections.abc import Iterable, Mapping
from typing import Final

from agents.events.gpus import LOADED_CHECKS
from health.detectors.gpu import xid
from health.detectors.links import nvlink_errors, pcie_link, sxid
from health.detectors.load import clock_events
from health.detectors.memory import corrected_errors, ecc_history
from health.detectors.modes import PEERS
from health.detectors.node import host_log, nic_driver, pair_probe
from health.detectors.ports import port_fatal
from health.detectors.registry import RULES
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

WINDOW_S: Final = 60.0
"""An agent's window. A rise in a shorter one is reported as if it had taken a minute: no rise is overrated."""
_BY_ITSELF: Final = frozenset({corrected_errors.NAME, port_fatal.NAME})
"""Rates of which a rise or a total is enough, however short the window."""
_KERNEL_LOG: Final = (xid.NAME, sxid.NAME, nic_driver.NAME, host_log.NAME)


def not_judged(
    policy: HealthPolicy,
    num_samples: int,
    listened_s: float,
    states: Iterable[Mapping[str, float]],
    *,
    is_log_read: bool,
) -> dict[str, str]:
    """Return detector → why. ``states``: of GPUs, by the names of ``GPU_STATE``."""
    found = {
        nvlink_errors.WINDOWS: "it needs 30 windows of a minute, which only an agent covers",
        pair_probe.NAME: "it needs another host's answers",
        ecc_history.NAME: "the totals of a board's life count at its first sight alone, which only the server knows",
        PEERS: "it needs other GPUs of the cohort under like load",
    }
    if num_samples < policy.clock_events.harmful_samples:
        found[clock_events.NAME] = (
            f"it counts {policy.clock_events.harmful_samples} of {policy.clock_events.window_samples} samples,"
            f" {num_samples} were taken: --listen {policy.clock_events.window_samples}"
        )
    if listened_s < WINDOW_S:
        why = (
            "its limit is of a minute and the scan was shorter, so only rises over that limit are found:"
            f" --listen {WINDOW_S:.0f}"
        )
        rates = {rule.name for rule in RULES if rule.nature is Nature.RATE}
        found |= dict.fromkeys(rates - _BY_ITSELF - found.keys(), why)
    if not any("pcie_loaded_width" in state for state in states):
        found[pcie_link.NAME] = f"a PCIe link is judged under load, by {LOADED_CHECKS} samples in a row"
    if not is_log_read:
        found |= dict.fromkeys(_KERNEL_LOG, "the kernel log cannot be read: run as root, or with CAP_SYSLOG")
    return dict(sorted(found.items()))
