"""The numbers of the detectors that judge a node: its GPUs' count, its ports, its own state; and of what holds it."""

from typing import Annotated

from pydantic import Field

from muster.domain.policy.gpu_detectors import DetectorPolicy, Positive
from muster.domain.policy.quantities import DAY_S, STATE_REPORT_S, Fraction, Number, Seconds
from muster.domain.strict import StrictModel


class GpuCountPolicy(DetectorPolicy):
    """A host that lists fewer GPUs than it enrolled with."""

    cordons_node_from: Number = Field(
        2,
        description="With so many missing GPUs the whole node gets no new work; with fewer only these GPUs are at "
        "fault.",
    )


class GpusAtFaultPolicy(DetectorPolicy):
    """GPUs of one node with condemning evidence about the same time."""

    gpus: Annotated[int, Field(ge=2, le=1024)] = Field(
        2, description="With so many different GPUs at fault the whole node gets no new work."
    )
    window_s: Seconds = Field(
        DAY_S, description="The last report of each of them is no earlier than so long before the newest one."
    )


class PortDownPolicy(DetectorPolicy):
    """A port that is down."""

    after_s: Seconds = Field(240.0, description="It weighs once the port was down for so long (gpud: 4 min).")


class PortCountPolicy(DetectorPolicy):
    """RDMA ports of a host."""

    ports_min: Annotated[int, Field(ge=0, le=1024)] = Field(
        0, description="Each host must have so many, whatever it had; 0: as many as it had."
    )


class PortRatePolicy(DetectorPolicy):
    """Rates of RDMA ports."""

    gbps_min: Annotated[float, Field(ge=0, le=1e6, strict=False)] = Field(
        0.0, description="Gb/s at which each must be up, whatever its rate was; 0: as fast as it was."
    )


class PortFlapPolicy(DetectorPolicy):
    """A port that was down and came back. By itself it weighs nothing; `port_flaps` counts it."""

    least_s: Seconds = Field(25.0, description="A port that was down for less did not flap (gpud).")


class PortFatalPolicy(DetectorPolicy):
    """Counters of a port that should never rise (NVSentinel's NIC monitor)."""

    symbol_errors_per_hour: Positive = Field(120.0, description="More are fatal, too.")


class PortDegradedPolicy(DetectorPolicy):
    """Counters of a port that show a bad link (NVSentinel's NIC monitor)."""

    symbol_errors_per_s: Positive = Field(10.0, description="More are a finding.")
    recoveries_per_minute: Positive = Field(5.0, description="More link error recoveries are a finding.")
    slow_restarts_per_s: Positive = Field(10.0, description="More RoCE slow restarts are a finding.")
    carrier_changes_max: Number = Field(2, description="More carrier changes in one window are a finding.")
    receive_errors_per_s: Positive = Field(
        10.0, description="More broken packets are a finding; of Ethernet both ways together."
    )


class PortTransportPolicy(DetectorPolicy):
    """Counters of a port that show packets that did not arrive."""

    discards_per_s: Positive = Field(100.0, description="More packets discarded before they were sent are a finding.")
    ack_timeouts_per_s: Positive = Field(1.0, description="More answers that did not come in time are a finding.")
    lost_packets_per_s: Positive = Field(
        100.0,
        description="More RoCE packets missing in a sequence, seen by either end, are a finding. The number is our "
        "own.",
    )


class HostPressurePolicy(DetectorPolicy):
    """Shares of a minute in which work waited (PSI). The numbers are our own."""

    cpu_share: Fraction = Field(0.9, description="The share in which some work waited for CPU; more is a finding.")
    memory_share: Fraction = Field(0.2, description="The share in which all work waited for memory; more is a finding.")
    io_share: Fraction = Field(0.5, description="The share in which all work waited for I/O; more is a finding.")


class HostClockPolicy(DetectorPolicy):
    """The host's wall clock."""

    offset_max_s: Seconds = Field(1.0, description="A clock further from the server's is a finding.")


class HostDiskPolicy(DetectorPolicy):
    """Room on the fullest disk that agent and jobs write to: bytes and inodes, each by the same numbers."""

    low_fraction: Fraction = Field(0.05, description="Less free is a finding.")
    out_fraction: Fraction = Field(0.01, description="Less free keeps new work off the node.")


class HostNetworkPolicy(DetectorPolicy):
    """The host's own network counters. The numbers are our own."""

    retransmit_share: Fraction = Field(
        0.02, description="The share of TCP segments that were sent again; more is a finding."
    )
    segments_min: Number = Field(1000, description="With fewer segments no share is reported.")
    drops_per_s: Positive = Field(100.0, description="More packets dropped by the kernel are a finding.")


class PairProbePolicy(DetectorPolicy):
    """Small messages between two hosts. The numbers are our own."""

    lost_share: Fraction = Field(0.01, description="The share of lost messages; more is a finding.")
    sent_min: Number = Field(100, description="With fewer messages no share is reported.")
    round_trip_p99_us: Positive = Field(5000.0, description="µs. A slower round trip is a finding.")


class WarmUpPolicy(StrictModel):
    """Links that train and fabrics that register when hosts boot: they are reported, and weigh only if they last."""

    after_boot_s: Seconds = Field(900.0, description="XIDs of NVLinks so soon after a boot are kept and weigh nothing.")
    outlast_s: Seconds = Field(
        300.0,
        description="NVLinks that are down and a fabric that is not ready weigh once they have been so for so long; "
        "a state that ends before never weighs.",
    )
    log_wait_s: Seconds = Field(
        10.0,
        description="An NVLink's XID, or an XID 94, that NVML reports without its text weighs only after so long. The "
        "kernel log's text decides if it arrives, the catalogue if not.",
    )


class RuleCordonPolicy(StrictModel):
    """The rule by which a fault of a node, its ports or its fabric cordons the node."""

    is_on: bool = Field(default=True, description="Whether findings of DEGRADED or worse about a node cordon it.")
    rate_fault_s: Seconds = Field(
        1800.0, description="How long a cordon lasts after the last report of a rate that is too high."
    )
    event_fault_s: Seconds = Field(
        DAY_S,
        description="How long a cordon lasts after an event, such as a fatal error of an NVSwitch; a release ends it.",
    )
    state_fault_s: Annotated[float, Field(gt=STATE_REPORT_S, le=31_536_000, strict=False)] = Field(
        10_800.0, description="How long a cordon lasts after the last report of a state: hosts report it each hour."
    )
