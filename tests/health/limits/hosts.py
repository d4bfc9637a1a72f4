"""A host's states, and rises of its counters."""

from muster.domain.evidence.findings import Severity
from tests.health.limits.limit import HOST, HOST_RATES, MINUTE, Limit

HOSTS = {
    "one_gpu_missing": Limit(
        HOST,
        {"expected_gpus": 8, "found_gpus": 8},
        {"expected_gpus": 8, "found_gpus": 7},
        "gpu_count",
        Severity.WARNING,
    ),
    "cpu_pressure": Limit(HOST, {"cpu_pressure": 0.9}, {"cpu_pressure": 0.91}, "host_pressure:cpu", Severity.WARNING),
    "memory_pressure": Limit(
        HOST, {"memory_pressure": 0.2}, {"memory_pressure": 0.21}, "host_pressure:memory", Severity.WARNING
    ),
    "io_pressure": Limit(HOST, {"io_pressure": 0.5}, {"io_pressure": 0.51}, "host_pressure:io", Severity.WARNING),
    "clock_offset": Limit(
        HOST, {"clock_offset_s": -1.0}, {"clock_offset_s": -1.1}, "host_clock:offset", Severity.WARNING
    ),
    "disk_low": Limit(
        HOST, {"disk_free_fraction": 0.05}, {"disk_free_fraction": 0.049}, "host_disk:low", Severity.WARNING
    ),
    "inodes_low": Limit(
        HOST, {"inodes_free_fraction": 0.05}, {"inodes_free_fraction": 0.049}, "host_disk:few_inodes", Severity.WARNING
    ),
    "read_only": Limit(HOST, {"read_only_disks": 0}, {"read_only_disks": 1}, "host_disk:read_only", Severity.DEGRADED),
    "drivers": Limit(HOST, {"drivers": 0}, {"drivers": 1}, "host_drivers", Severity.DEGRADED),
    "vbios_differs": Limit(
        HOST, {"vbios_differs": 0}, {"vbios_differs": 1}, "node_mismatch:vbios_version", Severity.WARNING
    ),
    "persistence_differs": Limit(
        HOST,
        {"persistence_differs": 0},
        {"persistence_differs": 1},
        "node_mismatch:persistence_enabled",
        Severity.WARNING,
    ),
    "clocks_differ": Limit(
        HOST, {"clocks_differ": 0}, {"clocks_differ": 1}, "node_mismatch:application_clock_mhz", Severity.WARNING
    ),
    "clock_steps": Limit(
        HOST_RATES, {"clock_steps": 0, **MINUTE}, {"clock_steps": 1, **MINUTE}, "host_clock:steps", Severity.WARNING
    ),
    "retransmits": Limit(
        HOST_RATES,
        {"tcp_segments": 1000, "tcp_retransmits": 20, **MINUTE},
        {"tcp_segments": 1000, "tcp_retransmits": 21, **MINUTE},
        "host_network:retransmits",
        Severity.WARNING,
    ),
    "retransmits_of_few": Limit(
        HOST_RATES,
        {"tcp_segments": 999, "tcp_retransmits": 999, **MINUTE},
        {"tcp_segments": 1000, "tcp_retransmits": 999, **MINUTE},
        "host_network:retransmits",
        Severity.WARNING,
    ),
    "drops": Limit(
        HOST_RATES,
        {"softnet_dropped": 3_000, "udp_receive_errors": 3_000, **MINUTE},
        {"softnet_dropped": 3_000, "udp_receive_errors": 3_001, **MINUTE},
        "host_network:drops",
        Severity.WARNING,
    ),
}
