"""The reports of agents on GPUs, hosts and ports besides samples: states when they change, counters when they rise.

Samples are the readings that change all the time. A reading that seldom changes is an event of its own (``EventKind``):
it is reported when the agent starts, when it changes, and once an hour. Counters are reported as their rise in
``window_s``, and only if they rose. The agent reports; the detectors decide by the policy how much is too much.

A missing value is unknown or unsupported, never zero. Each kind has a table: name → unit and text.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from muster.domain.evidence.findings import EventKind

_NO_WORD: Final = re.compile(r"[^A-Za-z0-9._:+/-]")
_WORD_LENGTH: Final = 128
_BRANCH: Final = re.compile(r"(\d{2,4})\.\d", re.ASCII)
SINCE_BOOT_S: Final = "since_boot_s"
"""Key in the values of any event: s from the host's boot to the event, where that is known."""
DRIVER_BRANCH: Final = "driver_branch"
"""Key in the values of an XID: branch of the host's driver at the report, such as 580, where that is known."""

GPU_STATE: Final[Mapping[str, str]] = {
    "sram_threshold_exceeded": "1 once uncorrectable SRAM errors passed NVIDIA's threshold (nvmlEccSramErrorStatus)",
    "remap_banks_max": "memory banks with all spare rows left (row-remapper histogram)",
    "remap_banks_high": "memory banks with many spare rows left",
    "remap_banks_partial": "memory banks with some spare rows left",
    "remap_banks_low": "memory banks with few spare rows left",
    "remap_banks_none": "memory banks without a spare row left",
    "retired_pages_single_bit": "pages retired after single-bit errors (before Ampere)",
    "retired_pages_double_bit": "pages retired after a double-bit error (before Ampere)",
    "retired_pages_pending": "1 while retired pages wait for a reset (before Ampere)",
    "unrepairable_memory": "1 where the driver says that memory cannot be repaired",
    "channel_repair_pending": "1 while a memory channel waits to be repaired (nvmlRepairStatus)",
    "tpc_repair_pending": "1 while a TPC waits to be repaired",
    "inforom_valid": "1 where the InfoROM's checksums hold, 0 where it is corrupt",
    "ecc_enabled": "1 where ECC is on",
    "mig_enabled": "1 where MIG is on",
    "persistence_enabled": "1 where persistence mode is on",
    "power_limit_w": "W, the limit that is set",
    "default_power_limit_w": "W, the board's own limit",
    "application_clock_mhz": "MHz, the SM clock that is set for programs (NVML's application clocks)",
    "default_application_clock_mhz": "MHz, the board's own",
    "temperature_slowdown_c": "°C at which the GPU slows itself down",
    "temperature_max_c": "°C, GPU_MAX: the highest at which it is meant to work",
    "memory_temperature_max_c": "°C, MEM_MAX of the HBM",
    "pcie_max_generation": "PCIe generation that GPU and slot can do together",
    "pcie_max_width": "lanes that GPU and slot can do together",
    "pcie_loaded_generation": "PCIe generation at the newest sample under load",
    "pcie_loaded_width": "lanes at the newest sample under load",
    "nvlink_links": "NVLinks that the GPU has",
    "nvlink_links_down": "how many of them are down",
    "nvlink_down_bits": "which: bit n for link n",
    "nvlink_mb_per_s": "MB/s of one of its active NVLinks (NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)",
    "nvlink_links_to_nothing": "how many of them are up with a remote end that the driver does not know",
    "nvlink_to_nothing_bits": "which: bit n for link n",
    "nvlink_effective_ber_exponent": "n of the worst link's effective bit error rate, 10^-n (NVLink 5)",
    "nvlink_symbol_ber_exponent": "the same of its symbols",
    "p2p_peers": "other GPUs of the host whose memory it should read",
    "p2p_not_ok": "of them those with which that is not OK (nvmlDeviceGetP2PStatus)",
    "p2p_not_ok_bits": "which: bit n for the GPU in slot n",
    "p2p_blamed": "of the pairs of the host that are not OK those laid to this GPU: as few GPUs as explain them all",
    "fabric_state": "0 unsupported, 1 not started, 2 in progress, 3 completed (nvmlGpuFabricInfo)",
    "fabric_status": "NVML's return code of the registration with the fabric; 0 success",
    "fabric_health_bits": "NVML's health mask of the fabric",
    "fabric_health_summary": "NVML's own summary of it: 1 healthy, 2 unhealthy, 3 limited; 0 unsupported",
    "fabric_clique": "which clique of its NVLink domain the GPU is in",
    "idle_sm_percent": "% of SMs that were busy between two samples at which no program computed on it (GPM)",
    "idle_dram_percent": "% of the memory's bandwidth that was used meanwhile",
    "idle_pcie_mib_per_s": "MiB/s over PCIe meanwhile, both ways",
    "idle_nvlink_mib_per_s": "MiB/s over all NVLinks meanwhile, both ways",
    "idle_utilisation_percent": "% of time in which a kernel ran, at least, in samples of which none saw a program",
}
"""Values of one GPU (``gpu_uuid``). ``GPU_WORDS`` are reported as text in addition."""

GPU_WORDS: Final[Mapping[str, str]] = {
    "model": "name of the board, such as NVIDIA_H100_80GB_HBM3",
    "vbios_version": "VBIOS of the board",
    "gsp_firmware_version": "firmware of the GPU System Processor",
    "inforom_version": "image of the board's InfoROM, such as G520.0200.00.05",
    "board_part_number": "part number of the board, such as 692-2G520-0200-000",
    "cuda_version": "newest CUDA version that the driver supports, such as 12.8",
    "fabric_cluster": "UUID of the NVLink domain that it registered with, 32 hexadecimal digits; none outside of one",
    "nvlink_ends_down": "links that are down and what was at their other end, such as 3/switch/0000:05:00.0+7/unknown",
}
"""Words of one GPU in the ``text`` of its ``GPU_STATE``: ``words_text`` writes them, ``words_in`` reads them."""

GPU_RATES: Final[Mapping[str, str]] = {
    "window_s": "s, how long the rise took",
    "link": "NVLink that rose; without it the rise is of the GPU",
    "crc_errors": "NVLink CRC errors",
    "replays": "NVLink replays",
    "recoveries": "NVLink recoveries",
    "symbol_errors": "NVLink symbol errors (NVLink 5)",
    "bad_windows": "of the last 30 windows of a minute those in which this link's counters rose",
    "pcie_replays": "PCIe replays",
    "pcie_generation": "PCIe generation in use while they rose",
    "pcie_width": "lanes in use while they rose",
    "pcie_correctable_errors": "correctable PCIe errors (AER)",
    "ecc_corrected_sram": "corrected ECC errors in SRAM",
    "ecc_corrected_dram": "corrected ECC errors in DRAM",
    "ecc_corrected_sram_total": "corrected ECC errors in SRAM in the board's life",
    "ecc_corrected_dram_total": "corrected ECC errors in DRAM in the board's life",
    "sw_thermal_s": "s of clocks held down by software for heat",
    "hw_thermal_s": "s of clocks held down by hardware for heat",
    "power_brake_s": "s of clocks held down by the power brake",
    "c2c_errors": "errors of the link between GPU and CPU on one package (C2C)",
    "c2c_replays": "its replays",
    "c2c_back_to_back_replays": "its replays one after the other",
}
"""Rises of the counters of one GPU, or of one of its links, within ``window_s``."""

COUNTER_RESET: Final[Mapping[str, str]] = {
    "num_counters": "counters of the GPU and of its links that were lower than when they were read before",
    "num_links": "NVLinks among them",
}
"""Values of one GPU that was reset, or whose driver was loaded again.

``text`` names the counters, as ``GPU_RATES`` does."""

HOST_STATE: Final[Mapping[str, str]] = {
    "expected_gpus": "GPUs of the enrolled inventory",
    "found_gpus": "GPUs that the driver lists",
    "expected_ports": "RDMA ports that the host has shown at any time",
    "found_ports": "how many of them are there, up or down",
    "disk_free_bytes": "bytes free on the fullest of the disks that the agent and jobs write to",
    "disk_free_fraction": "of that disk",
    "inodes_free_fraction": "inodes free on the disk with the fewest of its own; none where it has no fixed number",
    "read_only_disks": "folders that the agent and jobs write to on a file system that is read-only itself",
    "clock_offset_s": "s by which the host's clock is ahead of the server's",
    "cpu_pressure": "share of the last minute in which something waited for CPU (PSI some, avg60)",
    "memory_pressure": "share of the last minute in which all waited for memory (PSI full, avg60)",
    "io_pressure": "share of the last minute in which all waited for I/O (PSI full, avg60)",
    "drivers": "kernel driver and library versions that differ: 1 where nvidia.ko and NVML are not of one version",
    "vbios_differs": "GPUs whose VBIOS is another than that of most of their model on this host",
    "persistence_differs": "GPUs whose persistence mode is another than that of most of their model on this host",
    "clocks_differ": "GPUs whose application clocks differ from the clocks of most of their model on this host",
}
"""Values of the node, reported when one is new or has changed: free space, clock and pressure by over a tenth."""

HOST_READING_TEXTS: Final[Mapping[str, str]] = {
    "kernel_release": "Linux kernel, such as 6.8.0-45-generic",
    "nic_firmware": "firmware of the RDMA network cards, such as 28.39.1002; several with + between",
    "nic_driver": "version of the network cards' driver that is no part of the kernel (OFED's mlx5_core)",
}
"""Words of the node in the ``text`` of its ``HOST_STATE``."""

HOST_RATES: Final[Mapping[str, str]] = {
    "window_s": "s, how long the rise took",
    "tcp_segments": "TCP segments sent",
    "tcp_retransmits": "TCP segments sent again",
    "udp_receive_errors": "UDP datagrams lost for want of room or by checksum",
    "softnet_dropped": "packets that the kernel dropped before it read them",
    "clock_steps": "times that the wall clock was stepped against the boot clock by over a second",
}
"""Rises of the node's counters within ``window_s``."""

PORT_STATE: Final[Mapping[str, str]] = {
    "is_ethernet": "1 for RoCE or plain Ethernet, 0 for InfiniBand",
    "state": "1 down, 2 init, 3 armed, 4 active (IBTA); of Ethernet 1 or 4",
    "physical_state": "2 polling, 3 disabled (of Ethernet: by a person), 5 link up, 6 error recovery (IBTA)",
    "rate_gbps": "Gb/s",
    "best_rate_gbps": "Gb/s, the best rate of an RDMA port that it was up with at any time",
    "was_down_s": "s for which it was down before this state",
    "was_active": "1 once it was active since the host booted, 0 where it never was, such as without a cable",
    "is_missing": "1 where a port that the host enrolled with is not there, 0 where it is",
}
"""Values of one port of the node: ``text`` is its name, ``mlx5_0/1`` or ``eth0``."""

PORT_COUNTERS: Final = (
    "link_downed",
    "excessive_buffer_overrun_errors",
    "local_link_integrity_errors",
    "rnr_nak_retry_err",
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "roce_slow_restart",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "carrier_changes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
)
"""Names of files under /sys/class/infiniband/*/ports/*/{counters,hw_counters} and /sys/class/net/*."""
PORT_RATES: Final[Mapping[str, str]] = {
    "window_s": "s, how long the rise took",
    **dict.fromkeys(PORT_COUNTERS, "rise of the port's counter of this name"),
}
"""Rises of the counters of one port of the node: ``text`` is its name."""

PAIR_PROBE: Final[Mapping[str, str]] = {
    "window_s": "s, how long the probe took",
    "sent": "small messages sent to the other host",
    "lost": "of them those without an answer",
    "round_trip_p50_us": "µs",
    "round_trip_p99_us": "µs",
}
"""Results of a probe from the node to another: ``text`` is the other node's id."""

VALUES_OF: Final[Mapping[EventKind, Mapping[str, str]]] = {
    EventKind.GPU_STATE: GPU_STATE,
    EventKind.GPU_RATES: GPU_RATES,
    EventKind.COUNTER_RESET: COUNTER_RESET,
    EventKind.HOST_STATE: HOST_STATE,
    EventKind.HOST_RATES: HOST_RATES,
    EventKind.PORT_STATE: PORT_STATE,
    EventKind.PORT_RATES: PORT_RATES,
    EventKind.PAIR_PROBE: PAIR_PROBE,
}
"""Kind → name of a value → its words."""


def words_text(words: Mapping[str, str], names: Collection[str] = GPU_WORDS) -> str:
    """``name=word`` of ``names``, in the order of their names, with blanks between; empty ones are left out."""
    plain = {name: _NO_WORD.sub("_", words.get(name, "").strip())[:_WORD_LENGTH] for name in sorted(names)}
    return " ".join(f"{name}={word}" for name, word in plain.items() if word)


def words_in(text: str, names: Collection[str] = GPU_WORDS) -> dict[str, str]:
    """Parse the text that ``words_text`` wrote.

    An older agent writes nothing; unknown names of a newer one are skipped.
    """
    pairs = (part.partition("=") for part in text.split())
    return {name: word[:_WORD_LENGTH] for name, _, word in pairs if name in names and word}


def branch_of(driver_version: str | None) -> int | None:
    """Return the branch of a driver's version, 580 for ``580.95.05``; None where the text is no such version."""
    found = _BRANCH.match(driver_version or "")
    return None if found is None else int(found[1])


def with_driver(kind: str, values: Mapping[str, float], driver_version: str | None) -> Mapping[str, float]:
    """Return an event's values. An XID's values also have ``DRIVER_BRANCH`` where the version has one."""
    branch = branch_of(driver_version) if kind == EventKind.XID else None
    return values if branch is None else {**values, DRIVER_BRANCH: float(branch)}
