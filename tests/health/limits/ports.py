"""Network ports, their counters, and probes between hosts."""

from muster.domain.evidence.findings import EventKind, Severity
from tests.health.limits.limit import HOST, MINUTE, PORT, PORT_RATE, RDMA, SEEN, Limit

PORTS = {
    "port_down": Limit(PORT, {"state": 4, **SEEN}, {"state": 3, **SEEN}, f"port_down:{RDMA}", Severity.DEGRADED, RDMA),
    "port_disabled": Limit(
        PORT,
        {"state": 1, "physical_state": 3, **SEEN},
        {"state": 1, "physical_state": 2, **SEEN},
        f"port_down:{RDMA}",
        Severity.DEGRADED,
        RDMA,
    ),
    "roce_without_carrier": Limit(
        PORT,
        {"state": 4, "physical_state": 5, "is_ethernet": 1, **SEEN},
        {"state": 1, "physical_state": 3, "is_ethernet": 1, **SEEN},
        f"port_down:{RDMA}",
        Severity.DEGRADED,
        RDMA,
    ),
    "ethernet_disabled": Limit(
        PORT,
        {"state": 1, "physical_state": 3, "is_ethernet": 1, **SEEN},
        {"state": 1, "physical_state": 2, "is_ethernet": 1, **SEEN},
        "port_down:eth0",
        Severity.WARNING,
        "eth0",
    ),
    "ethernet_down": Limit(
        PORT,
        {"state": 4, "is_ethernet": 1, **SEEN},
        {"state": 1, "is_ethernet": 1, **SEEN},
        "port_down:eth0",
        Severity.WARNING,
        "eth0",
    ),
    "port_count": Limit(
        HOST,
        {"expected_ports": 8, "found_ports": 8},
        {"expected_ports": 8, "found_ports": 7},
        "port_count",
        Severity.DEGRADED,
    ),
    "port_missing": Limit(PORT, {"is_missing": 0}, {"is_missing": 1}, f"port_missing:{RDMA}", Severity.DEGRADED, RDMA),
    "port_rate": Limit(
        PORT,
        {"state": 4, "rate_gbps": 400, "best_rate_gbps": 400},
        {"state": 4, "rate_gbps": 200, "best_rate_gbps": 400},
        f"port_rate:{RDMA}",
        Severity.DEGRADED,
        RDMA,
    ),
    "port_flap": Limit(
        PORT, {"state": 4, "was_down_s": 24.9}, {"state": 4, "was_down_s": 25}, f"port_flap:{RDMA}", Severity.INFO, RDMA
    ),
    **{
        counter: Limit(
            PORT_RATE,
            {counter: 0, **MINUTE},
            {counter: 1, **MINUTE},
            f"port_fatal:{RDMA}",
            Severity.DEGRADED,
            RDMA,
        )
        for counter in (
            "link_downed",
            "excessive_buffer_overrun_errors",
            "local_link_integrity_errors",
            "rnr_nak_retry_err",
        )
    },
    "symbol_errors_an_hour": Limit(
        PORT_RATE,
        {"symbol_error": 120, "window_s": 3600},
        {"symbol_error": 121, "window_s": 3600},
        f"port_fatal:{RDMA}",
        Severity.DEGRADED,
        RDMA,
    ),
    "recoveries": Limit(
        PORT_RATE,
        {"link_error_recovery": 5, **MINUTE},
        {"link_error_recovery": 6, **MINUTE},
        f"port_degraded:{RDMA}",
        Severity.WARNING,
        RDMA,
    ),
    "slow_restarts": Limit(
        PORT_RATE,
        {"roce_slow_restart": 600, **MINUTE},
        {"roce_slow_restart": 601, **MINUTE},
        f"port_degraded:{RDMA}",
        Severity.WARNING,
        RDMA,
    ),
    **{
        f"{'_and_'.join(counters)}": Limit(
            PORT_RATE,
            {**dict.fromkeys(counters, per_s * 60 / len(counters)), **MINUTE},
            {**dict.fromkeys(counters, per_s * 60 / len(counters) + 1), **MINUTE},
            f"{rule}:{port}",
            Severity.WARNING,
            port,
        )
        for rule, port, per_s, *counters in (
            ("port_degraded", RDMA, 10, "port_rcv_errors"),
            ("port_degraded", "eth0", 10, "rx_errors", "tx_errors"),
            ("port_transport", RDMA, 100, "port_xmit_discards"),
            ("port_transport", RDMA, 1, "local_ack_timeout_err"),
            ("port_transport", RDMA, 100, "out_of_sequence", "packet_seq_err"),
        )
    },
    "carrier_changes": Limit(
        PORT_RATE,
        {"carrier_changes": 2, **MINUTE},
        {"carrier_changes": 3, **MINUTE},
        "port_degraded:eth0",
        Severity.WARNING,
        "eth0",
    ),
    "probe_loss": Limit(
        EventKind.PAIR_PROBE,
        {"sent": 1000, "lost": 10},
        {"sent": 1000, "lost": 11},
        "pair_probe:loss:node_2",
        Severity.WARNING,
        "node_2",
    ),
    "probe_latency": Limit(
        EventKind.PAIR_PROBE,
        {"sent": 1000, "round_trip_p99_us": 5000},
        {"sent": 1000, "round_trip_p99_us": 5001},
        "pair_probe:latency:node_2",
        Severity.WARNING,
        "node_2",
    ),
}
