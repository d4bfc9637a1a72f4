"""The numbers of the detectors that judge a GPU: ``health.detectors.<name>``, a section for each rule.

Each can be turned to shadow or off. Where a number comes from stands with its rule, in ``health/detectors``.
"""

from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from muster.domain.gpu.signal_groups import SignalGroup
from muster.domain.policy.quantities import DAY_S, Fraction, Number, Percent, Seconds
from muster.domain.strict import StrictModel

Positive = Annotated[float, Field(gt=0, le=1e9, strict=False)]
Degrees = Annotated[float, Field(ge=-50, le=200, strict=False)]


Mode = Literal["on", "shadow", "off"]


class DetectorPolicy(StrictModel):
    """A rule whose only number is whether it counts."""

    mode: Mode = Field(
        "on",
        description="`on`; `shadow`: its findings are kept and shown, and weigh nothing; `off`: it finds nothing.",
    )


class FreshnessPolicy(DetectorPolicy):
    """The age at which a GPU's signals are no longer news. The numbers are our own.

    An agent of release 0.1.0 states no ages, and a host that is silent as a whole is judged by its contact.
    """

    late_samples_max: Number = Field(
        3,
        description="A GPU for which the driver gives no answer in so many samples in a row gets no new work; the "
        "first one is a warning. Agents sample each 10 s.",
    )
    condemned_after_s: Seconds = Field(
        600.0, description="It is condemned after so long, if another GPU of its host answers in the same sample."
    )
    states_max_s: Seconds = Field(
        240.0, description="A GPU whose last answered inspection is older gets no new work. One is due each minute."
    )
    xid_events_max_s: Seconds = Field(
        60.0, description="A node gets no new work while the agent's wait for the driver's events hangs for longer."
    )
    kernel_log_max_s: Seconds = Field(
        60.0, description="A node gets no new work while the reader of the kernel log gives no sign for longer."
    )
    dcgm_max_s: Seconds = Field(
        600.0, description="A node gets no new work if the dcgm-exporter, once it has answered, does not for longer."
    )
    host_max_s: Seconds = Field(
        240.0, description="A node gets no new work while ports, disks and clock of the host are not read for longer."
    )
    agent_max_s: Seconds = Field(
        300.0,
        description="A node in contact gets no new work if its agent sends no report for longer, counted from when "
        "the API takes reports again.",
    )

    def max_age_s(self, group: SignalGroup) -> float:
        """Return the age at which a group is overdue; of readings, the age at which the GPU is condemned."""
        if group is SignalGroup.READINGS:
            return self.condemned_after_s
        limit: float = getattr(self, f"{group.value}_max_s")
        return limit


class DriverLatencyPolicy(DetectorPolicy):
    """A driver that answers slowly. The numbers are our own."""

    mode: Mode = Field(
        "shadow",
        description="`on`; `shadow`: its findings are kept and shown, and weigh nothing; `off`: it finds nothing.",
    )
    max_ms: Positive = Field(1000.0, description="ms. A sample of one GPU that takes longer is slow.")
    samples: Number = Field(3, description="So many slow samples in a row are a finding.")


class TemperaturePolicy(DetectorPolicy):
    """Heat by the readings of one sample."""

    gpu_max_c: Degrees = Field(
        95.0, description="°C. A hotter core is over GPU_MAX, for a GPU that reports no limit itself."
    )
    memory_max_c: Degrees = Field(
        105.0, description="°C. Hotter HBM is over MEM_MAX, for a GPU that reports no limit itself."
    )
    gpu_max_c_of: dict[str, Degrees] = Field(
        default={"A100": 85.0},
        description="The same for models whose name contains the key; the longest matching key counts.",
    )
    memory_max_c_of: dict[str, Degrees] = Field(
        default={"A100": 95.0},
        description="The same for models whose name contains the key; the longest matching key counts.",
    )

    @cached_property
    def strictest_gpu_c(self) -> float:
        return min((self.gpu_max_c, *self.gpu_max_c_of.values()))

    @cached_property
    def strictest_memory_c(self) -> float:
        return min((self.memory_max_c, *self.memory_max_c_of.values()))


class ThermalMarginPolicy(DetectorPolicy):
    """Degrees that are left until a GPU slows itself down."""

    least_c: Degrees = Field(-2.0, description="°C. A smaller margin is a finding (NVSentinel: H100, GB200, L40).")
    least_c_of: dict[str, Degrees] = Field(
        default={"B200": -3.0, "GB200": -2.0},
        description="The same for models whose name contains the key; the longest matching key counts.",
    )

    @cached_property
    def strictest_c(self) -> float:
        return max((self.least_c, *self.least_c_of.values()))


class ThrottleSecondsPolicy(DetectorPolicy):
    """Clocks held down, by the driver's own count of seconds."""

    share: Fraction = Field(0.6, description="The share of a window from which on it is a finding (gpud: 6 in 10).")


class RetiredPagesPolicy(DetectorPolicy):
    """Pages of memory that were taken out of use, on boards from before Ampere."""

    pages_max: Number = Field(63, description="A board with so many pages is used up (DCGM).")
    double_bit_pages: Number = Field(
        15,
        description="A board with more than so many pages after double-bit errors, and more than one of them in a "
        "week, is used up.",
    )
    window_s: Seconds = Field(7 * DAY_S, description="The length of that week.")


class CorrectedErrorsPolicy(DetectorPolicy):
    """Corrected memory errors in a board's life."""

    sram_max: Number = Field(10_000, description="More than so many in SRAM are a finding (Azure).")
    dram_max: Annotated[int, Field(ge=1, le=1 << 50)] = Field(
        20_000_000, description="More than so many in DRAM are a finding (Azure)."
    )


class CorrectedRemapPolicy(DetectorPolicy):
    """Rows of memory that were replaced by spare ones after correctable errors."""

    rows_max: Number = Field(
        10, description="A rise past so many in a board's life, or within `window_s`, is a finding (SuperBench)."
    )
    window_s: Seconds = Field(7 * DAY_S, description="More than `rows_max` within it keep new jobs away.")


class PowerLimitPolicy(DetectorPolicy):
    """A power limit under the board's own."""

    least_fraction: Fraction = Field(0.99, description="The fraction of the default limit under which it is a finding.")


class PcieReplayPolicy(DetectorPolicy):
    """PCIe replays, by generation and lanes: ceil(lanes × the number of that generation) a minute (DCGM)."""

    per_lane_per_minute: tuple[Positive, ...] = Field(
        default=(0.15, 0.3, 0.48, 0.96, 1.92, 3.84),
        min_length=1,
        strict=False,
        description="The numbers of generation 1, 2, 3 and so on; the last counts for later ones.",
    )


class PcieErrorPolicy(DetectorPolicy):
    """Correctable PCIe errors (AER)."""

    errors_per_minute: Positive = Field(32.0, description="More a minute are a finding (DCGM: 480 in 15 min).")


class NvlinkCrcPolicy(DetectorPolicy):
    """Flit CRC errors of NVLinks."""

    errors_per_s: Positive = Field(100.0, description="So many a second or more are a finding (DCGM).")


class NvlinkCountPolicy(DetectorPolicy):
    """NVLinks by the GPU's model. Keys are parts of a model's name; the longest that fits counts."""

    links_of: dict[str, Annotated[int, Field(ge=0, le=64)]] = Field(
        default={
            "A100-SXM": 12,
            "H100": 18,
            "H100 PCIe": 0,
            "H100 NVL": 0,
            "H200": 18,
            "H200 NVL": 0,
            "B200": 18,
            "B300": 18,
        },
        description="How many a board has; a model that no key fits is expected to have none.",
    )
    gb_per_s_of: dict[str, Annotated[float, Field(ge=0, le=1000, strict=False)]] = Field(
        default={
            "A100-SXM": 25.0,
            "H100": 26.5625,
            "H100 PCIe": 0,
            "H100 NVL": 0,
            "H200": 26.5625,
            "H200 NVL": 0,
            "B200": 53.125,
            "B300": 53.125,
        },
        description="GB/s of one link, raw and in one direction.",
    )
    usable_fraction: Fraction = Field(
        0.94, description="The fraction of `gb_per_s_of`; a slower link is a finding (NVSentinel)."
    )


class NvlinkWindowPolicy(DetectorPolicy):
    """A link whose errors come minute after minute."""

    bad_windows_max: Annotated[int, Field(ge=1, le=29)] = Field(
        15, description="More than so many of 30 one-minute windows with a rise (NVRx)."
    )


class IdleBusyPolicy(DetectorPolicy):
    """A GPU that computes while no program is on it. The numbers are our own."""

    sm_percent: Percent = Field(
        50.0, description="More of its SMs busy over a window in which no sample saw a program are a finding (GPM)."
    )
    utilisation_percent: Percent = Field(
        90.0, description="The same for the least utilisation in any sample of the window, for a GPU without GPM."
    )


class RepeatPolicy(DetectorPolicy):
    """A rule over existing evidence: the same fault occurs again."""

    times: Annotated[int, Field(ge=2, le=1000)] = Field(description="So many occurrences, with the new one.")
    window_s: Seconds = Field(description="The time within which they occur.")


class DiagnosedRepeatPolicy(RepeatPolicy):
    """XIDs of programs that recur on a GPU after a passed diagnosis. ``times``: since the diagnosis began."""

    programs: Annotated[int, Field(ge=2, le=1000)] = Field(
        3,
        description="If they are of so many tenants, or of so many images, the finding keeps new jobs away; of fewer "
        "it is a warning.",
    )


class JobFaultRepeatPolicy(RepeatPolicy):
    """Verdicts of several jobs that name one GPU. ``times``: so many different jobs."""

    mode: Mode = Field(
        "shadow",
        description="`on`; `shadow`: its findings are kept and shown, and weigh nothing; `off`: it finds nothing.",
    )
    tenants: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="So many different tenants among them. With 2 no tenant alone can make a GPU suspect."
    )


class LinkBitPolicy(RepeatPolicy):
    """Bits of an XID 74 that come again on one link. ``times`` is of an ECC or parity error (NVIDIA: more than two)."""

    others_times: Annotated[int, Field(ge=2, le=1000)] = Field(
        2,
        description="The same for bits for which NVIDIA gives no number: a second occurrence counts (NVSentinel: 2 "
        "in 24 h).",
    )


class AlonePolicy(DetectorPolicy):
    """XID 45 without another XID near it, after which NVIDIA asks for a restart of the fabric manager."""

    window_s: Seconds = Field(5.0, description="An XID is alone if no other XID of its GPU is so near to it.")


class BurstPolicy(RepeatPolicy):
    """Repeated faults, counted by burst: faults close together are one."""

    gap_s: Seconds = Field(
        180.0,
        description="A burst ends with so long a pause (NVSentinel); within it one fault weighs once on the score.",
    )
    sticky_gap_s: Seconds = Field(10_800.0, description="The same for the XIDs of `sticky`.")
    sticky: tuple[Annotated[int, Field(ge=0, le=100_000)], ...] = Field(
        default=(74, 79, 95, 109, 119), strict=False, description="XIDs that come again for hours after one fault."
    )
