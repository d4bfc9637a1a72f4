"""The section ``health.detectors`` of the policy: a section for each rule, by its name."""

from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from muster.domain.policy.gpu_detectors import (
    AlonePolicy,
    BurstPolicy,
    CorrectedErrorsPolicy,
    CorrectedRemapPolicy,
    DetectorPolicy,
    DiagnosedRepeatPolicy,
    DriverLatencyPolicy,
    FreshnessPolicy,
    IdleBusyPolicy,
    JobFaultRepeatPolicy,
    LinkBitPolicy,
    NvlinkCountPolicy,
    NvlinkCrcPolicy,
    NvlinkWindowPolicy,
    PcieErrorPolicy,
    PcieReplayPolicy,
    PowerLimitPolicy,
    RepeatPolicy,
    RetiredPagesPolicy,
    TemperaturePolicy,
    ThermalMarginPolicy,
    ThrottleSecondsPolicy,
)
from muster.domain.policy.node_detectors import (
    GpuCountPolicy,
    GpusAtFaultPolicy,
    HostClockPolicy,
    HostDiskPolicy,
    HostNetworkPolicy,
    HostPressurePolicy,
    PairProbePolicy,
    PortCountPolicy,
    PortDegradedPolicy,
    PortDownPolicy,
    PortFatalPolicy,
    PortFlapPolicy,
    PortRatePolicy,
    PortTransportPolicy,
)
from muster.domain.policy.quantities import DAY_S
from muster.domain.strict import StrictModel

_REPEATS = (
    "mmu_fault_repeats",
    "sm_exception_repeats",
    "copy_engine_repeats",
    "repeats_after_diagnosis",
    "link_bit_repeats",
    "gsp_repeats",
    "bus_repeats",
    "reset_repeats",
    "fatal_repeats",
    "port_flaps",
    "nic_repeats",
    "nic_driver_repeats",
    "repair_repeats",
    "job_fault_repeats",
)


def _plain(words: str) -> DetectorPolicy:
    field: DetectorPolicy = Field(DetectorPolicy(), description=words)
    return field


def _shadow(words: str) -> DetectorPolicy:
    field: DetectorPolicy = Field(DetectorPolicy(mode="shadow"), description=words)
    return field


def _repeats(times: int, window_s: float, words: str) -> RepeatPolicy:
    field: RepeatPolicy = Field(RepeatPolicy(times=times, window_s=window_s), description=words)
    return field


class DetectorsPolicy(StrictModel):
    """Every rule by its name, with its numbers. docs/reference/detectors.md says what each finds, and its source."""

    xid: DetectorPolicy = _plain("XIDs, by the catalogue and their own words.")
    sxid: DetectorPolicy = _plain("Errors of NVSwitches.")
    nic_driver: DetectorPolicy = _plain("What the driver of a network card says of it in the kernel log.")
    host_log: DetectorPolicy = _plain("What the kernel logs of memory, PCIe, disks and tasks of the host.")
    ecc_uncorrected: DetectorPolicy = _plain("A rise of uncorrected ECC errors.")
    ecc_history: DetectorPolicy = _plain("Uncorrected ECC errors of a board's life, at first sight.")
    row_remap: DetectorPolicy = _plain("Row remaps that wait, failed, or are too many (`health.row_remap`).")
    row_remap_rise: DetectorPolicy = _plain("Rows newly remapped.")
    recovery_action: DetectorPolicy = _plain("What the driver asks for.")
    clock_events: DetectorPolicy = _plain("Clocks held down in samples (`health.clock_events`).")
    gpu_lost: DetectorPolicy = _plain("A GPU that the driver lost.")
    sram_threshold: DetectorPolicy = _plain("NVIDIA's own flag for too many uncorrectable SRAM errors.")
    remap_banks: DetectorPolicy = _plain("A memory bank without a spare row left.")
    inforom: DetectorPolicy = _plain("An InfoROM whose checksums do not hold.")
    unrepairable_memory: DetectorPolicy = _plain("Memory that the driver calls unrepairable.")
    gpu_settings: DetectorPolicy = _plain("ECC or persistence mode off, or application clocks under the board's.")
    pcie_link: DetectorPolicy = _plain("A PCIe link that is slower under load than it can be.")
    nvlink_down: DetectorPolicy = _plain("NVLinks that are down.")
    nvlink_to_nothing: DetectorPolicy = _plain("NVLinks whose other end the driver does not know.")
    p2p: DetectorPolicy = _plain("GPUs with NVLinks that cannot read each other's memory.")
    nvlink_rises: DetectorPolicy = _plain("NVLink replays and recoveries.")
    fabric_state: DetectorPolicy = _plain("A GPU that is not registered with its NVLink fabric.")
    fabric_health: DetectorPolicy = _plain("What NVML's health mask says of the fabric.")
    port_missing: DetectorPolicy = _plain("An RDMA port of the enrolled inventory that is not there.")
    host_drivers: DetectorPolicy = _plain("A kernel driver and a library of two versions.")
    node_mismatch: DetectorPolicy = _plain("GPUs of one model on one host that are not set up alike.")

    freshness: FreshnessPolicy = Field(default_factory=FreshnessPolicy)
    driver_latency: DriverLatencyPolicy = Field(default_factory=DriverLatencyPolicy)
    temperature: TemperaturePolicy = Field(default_factory=TemperaturePolicy)
    thermal_margin: ThermalMarginPolicy = Field(default_factory=ThermalMarginPolicy)
    throttle_seconds: ThrottleSecondsPolicy = Field(default_factory=ThrottleSecondsPolicy)
    retired_pages: RetiredPagesPolicy = Field(default_factory=RetiredPagesPolicy)
    corrected_errors: CorrectedErrorsPolicy = Field(default_factory=CorrectedErrorsPolicy)
    corrected_remaps: CorrectedRemapPolicy = Field(default_factory=CorrectedRemapPolicy)
    power_limit: PowerLimitPolicy = Field(default_factory=PowerLimitPolicy)
    pcie_replays: PcieReplayPolicy = Field(default_factory=PcieReplayPolicy)
    pcie_errors: PcieErrorPolicy = Field(default_factory=PcieErrorPolicy)
    nvlink_crc: NvlinkCrcPolicy = Field(default_factory=NvlinkCrcPolicy)
    nvlink_count: NvlinkCountPolicy = Field(default_factory=NvlinkCountPolicy)
    nvlink_windows: NvlinkWindowPolicy = Field(default_factory=NvlinkWindowPolicy)
    idle_busy: IdleBusyPolicy = Field(default_factory=IdleBusyPolicy)
    gpu_count: GpuCountPolicy = Field(default_factory=GpuCountPolicy)
    gpus_at_fault: GpusAtFaultPolicy = Field(default_factory=GpusAtFaultPolicy)
    port_down: PortDownPolicy = Field(default_factory=PortDownPolicy)
    port_count: PortCountPolicy = Field(default_factory=PortCountPolicy)
    port_rate: PortRatePolicy = Field(default_factory=PortRatePolicy)
    port_flap: PortFlapPolicy = Field(default_factory=PortFlapPolicy)
    port_fatal: PortFatalPolicy = Field(default_factory=PortFatalPolicy)
    port_degraded: PortDegradedPolicy = Field(default_factory=PortDegradedPolicy)
    port_transport: PortTransportPolicy = Field(default_factory=PortTransportPolicy)
    host_pressure: HostPressurePolicy = Field(default_factory=HostPressurePolicy)
    host_clock: HostClockPolicy = Field(default_factory=HostClockPolicy)
    host_disk: HostDiskPolicy = Field(default_factory=HostDiskPolicy)
    host_network: HostNetworkPolicy = Field(default_factory=HostNetworkPolicy)
    pair_probe: PairProbePolicy = Field(default_factory=PairProbePolicy)

    mmu_fault_repeats: RepeatPolicy = _repeats(2, DAY_S, "XID 31 on one GPU, and on no other of its node.")
    sm_exception_repeats: RepeatPolicy = _repeats(2, DAY_S, "XID 13 in one GPC and TPC of a GPU.")
    copy_engine_repeats: RepeatPolicy = _repeats(
        2, DAY_S, "An XID of a copy engine (39 to 41, 70 to 72, 75 to 77, 85, 126 to 135) on one GPU alone of its node."
    )
    repeats_after_diagnosis: DiagnosedRepeatPolicy = Field(
        DiagnosedRepeatPolicy(times=2, window_s=DAY_S),
        description="XID 13, 31 or one of a copy engine on one GPU alone of its node, after a diagnosis that such XIDs "
        "ordered has passed.",
    )
    link_bit_repeats: LinkBitPolicy = Field(
        LinkBitPolicy(times=3, window_s=DAY_S), description="A bit of an XID 74's registers on one link."
    )
    gsp_repeats: RepeatPolicy = _repeats(3, 30 * DAY_S, "XID 119 or 120 on one GPU: to be held, not reset again.")
    bus_repeats: RepeatPolicy = _repeats(2, 30 * DAY_S, "XID 79 on one GPU: to be held, not rebooted again.")
    reset_repeats: RepeatPolicy = _repeats(2, 30 * DAY_S, "XID 136 or 143 on one GPU: to be held, not reset again.")
    fatal_repeats: BurstPolicy = Field(
        BurstPolicy(times=5, window_s=DAY_S), description="Bursts of XIDs that condemn a GPU."
    )
    port_flaps: RepeatPolicy = _repeats(3, 14_400.0, "Flaps of one port.")
    nic_repeats: RepeatPolicy = _repeats(3, 3600.0, "Statements of `port_degraded` about one port.")
    nic_driver_repeats: RepeatPolicy = _repeats(3, 3600.0, "What `nic_driver` finds on one node.")
    cleanup_alone: AlonePolicy = Field(default_factory=AlonePolicy)
    repair_repeats: RepeatPolicy = _repeats(5, 7 * DAY_S, "Repairs on one node.")

    job_hang: DetectorPolicy = _plain("A verdict on a hang that names a GPU or a host. It weighs nothing by itself.")
    job_value_fault: DetectorPolicy = _plain("A verdict on values that are no numbers. It weighs nothing by itself.")
    job_straggler: DetectorPolicy = _shadow("A verdict on a slow rank that names its GPU.")
    job_corruption: DetectorPolicy = _shadow("A verdict on wrong values of a replica that names its GPU.")
    job_fault_repeats: JobFaultRepeatPolicy = Field(
        JobFaultRepeatPolicy(times=3, window_s=30 * DAY_S),
        description="Verdicts on hangs, or on values that are no numbers, of different jobs that name one GPU.",
    )

    @field_validator(*_REPEATS, mode="before")
    @classmethod
    def _rest_by_default(cls, given: Any, info: ValidationInfo) -> Any:
        """Fill the fields that a document omits with the rule's own defaults, so that it may name the mode alone."""
        if not isinstance(given, dict) or info.field_name is None:
            return given
        return {**cls.model_fields[info.field_name].default.model_dump(), **given}
