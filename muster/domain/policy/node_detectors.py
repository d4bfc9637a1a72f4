"""The numbers of the detectors that judge a node: its GPUs' count, its ports, its own state; and of what holds it."""

from typing import Annotated

from pydantic import Field

from muster.domain.policy.gpu_detectors import DetectorPolicy, Positive
from muster.domain.policy.quantities import DAY_S, STATES_TOLD_S, Fraction, Number, Seconds
from muster.domain.strict import StrictModel


class GpuCountPolicy(DetectorPolicy):
    """A host that lists fewer GPUs than it enrolled with."""

    holds_node_from: Number = Field(
        2, description="So many missing GPUs keep new work off the whole node; fewer are their own fault."
    )


class GpusAtFaultPolicy(DetectorPolicy):
    """GPUs of one node with condemning evidence about the same time."""

    gpus: Annotated[int, Field(ge=2, le=1024)] = Field(
        2, description="So many different GPUs of a node keep new work off the whole of it."
    )
    window_s: Seconds = Field(DAY_S, description="Each was last told of no longer before the last one than that.")


class PortDownPolicy(DetectorPolicy):
    """A port that is down."""

    after_s: Seconds = Field(240.0, description="It weighs once it was down for so long (gpud: 4 min).")


class PortCountPolicy(DetectorPolicy):
    """RDMA ports of a host."""

    ports_min: Annotated[int, Field(ge=0, le=1024)] = Field(
        0, description="So many each host must have, whatever it had; 0: as many as it had."
    )


class PortRatePolicy(DetectorPolicy):
    """Rates of RDMA ports."""

    gbps_min: Annotated[float, Field(ge=0, le=1e6, strict=False)] = Field(
        0.0, description="Gb/s that each must be up with, whatever it was; 0: as fast as it was."
    )


class PortFlapPolicy(DetectorPolicy):
    """A port that was down and came back. By itself it weighs nothing; `port_flaps` counts it."""

    least_s: Seconds = Field(25.0, description="Down for less is no flap (gpud).")


class PortFatalPolicy(DetectorPolicy):
    """Counters of a port that should never rise (NVSentinel's NIC monitor)."""

    symbol_errors_per_hour: Positive = Field(120.0, description="More are fatal, too.")


class PortDegradedPolicy(DetectorPolicy):
    """Counters of a port that tell of a bad link (NVSentinel's NIC monitor)."""

    symbol_errors_per_s: Positive = Field(10.0, description="More are a finding.")
    recoveries_per_minute: Positive = Field(5.0, description="More link error recoveries are a finding.")
    slow_restarts_per_s: Positive = Field(10.0, description="More RoCE slow restarts are a finding.")
    carrier_changes_max: Number = Field(2, description="More carrier changes in one window are a finding.")
    receive_errors_per_s: Positive = Field(
        10.0, description="More broken packets are a finding; of Ethernet both ways together."
    )


class PortTransportPolicy(DetectorPolicy):
    """Counters of a port that tell of packets that did not arrive."""

    discards_per_s: Positive = Field(100.0, description="More packets discarded before they were sent are a finding.")
    ack_timeouts_per_s: Positive = Field(1.0, description="More answers that did not come in time are a finding.")
    lost_packets_per_s: Positive = Field(
        100.0, description="More RoCE packets missing in a sequence, seen by either end, are a finding. Ours."
    )


class HostPressurePolicy(DetectorPolicy):
    """Shares of a minute in which work waited (PSI). Numbers of ours."""

    cpu_share: Fraction = Field(0.9, description="Something waited for CPU.")
    memory_share: Fraction = Field(0.2, description="All waited for memory.")
    io_share: Fraction = Field(0.5, description="All waited for I/O.")


class HostClockPolicy(DetectorPolicy):
    """The host's wall clock."""

    offset_max_s: Seconds = Field(1.0, description="Further off the server's is a finding.")


class HostDiskPolicy(DetectorPolicy):
    """Room on the fullest disk that agent and jobs write to: bytes and inodes, each by the same numbers."""

    low_fraction: Fraction = Field(0.05, description="Less free is a finding.")
    out_fraction: Fraction = Field(0.01, description="Less free keeps new work off the node.")


class HostNetworkPolicy(DetectorPolicy):
    """The host's own network counters. Numbers of ours."""

    retransmit_share: Fraction = Field(0.02, description="Of TCP segments sent again; more is a finding.")
    segments_min: Number = Field(1000, description="Of fewer segments no share is told.")
    drops_per_s: Positive = Field(100.0, description="More packets dropped by the kernel are a finding.")


class PairProbePolicy(DetectorPolicy):
    """Small messages between two hosts. Numbers of ours."""

    lost_share: Fraction = Field(0.01, description="More lost is a finding.")
    sent_min: Number = Field(100, description="Of fewer messages no share is told.")
    round_trip_p99_us: Positive = Field(5000.0, description="µs. Slower is a finding.")


class WarmUpPolicy(StrictModel):
    """Links train and fabrics register when hosts boot: that is told, and weighs only once it outlasts."""

    after_boot_s: Seconds = Field(
        900.0, description="XIDs of NVLinks that come so soon after a boot are kept and weigh nothing."
    )
    outlast_s: Seconds = Field(
        300.0,
        description="NVLinks that are down and a fabric that is not ready weigh once they have been so for so long; "
        "what is over before never weighs.",
    )
    words_wait_s: Seconds = Field(
        10.0,
        description="An NVLink's XID that NVML tells without its words weighs only after so long: the kernel log's "
        "words decide if they come, the catalogue if not.",
    )


class NodeHoldPolicy(StrictModel):
    """The rule by which a fault of a node, its ports or its fabric cordons the node."""

    is_on: bool = Field(default=True, description="Whether findings of DEGRADED or worse about a node cordon it.")
    rate_holds_s: Seconds = Field(1800.0, description="For how long after a rate was last told too high.")
    moment_holds_s: Seconds = Field(
        DAY_S, description="For how long after an event, such as a fatal error of an NVSwitch; a release ends it."
    )
    state_holds_s: Annotated[float, Field(gt=STATES_TOLD_S, le=31_536_000, strict=False)] = Field(
        10_800.0, description="For how long after a state was last told: hosts tell it each hour."
    )
