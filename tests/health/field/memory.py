"""ECC, remapped rows, retired pages, the InfoROM, and the lost GPU."""

from tests.health.case_factory import DAY, NOW_MS, SECOND, lost_sample, sample
from tests.health.field.judged import CONDEMNING, DEGRADED, WARNING, Rule, rates, retired, rise, sampled, state

MEMORY: dict[str, Rule] = {
    "a_remap_that_waits": Rule(
        "row_remap:pending",
        DEGRADED,
        "gpud; DCGM; Azure",
        sampled(sample(remap_pending=1.0)),
        sampled(sample(remap_pending=0.0)),
    ),
    "a_remap_that_failed": Rule(
        "row_remap:failure",
        CONDEMNING,
        "gpud; DCGM; Azure",
        sampled(sample(remap_failure=1.0)),
        sampled(sample(remap_failure=0.0)),
    ),
    "512_rows_remapped": Rule(
        "row_remap:exhausted",
        CONDEMNING,
        "DCGM",
        sampled(sample(remapped_rows_uncorrected=512.0)),
        sampled(sample(remapped_rows_uncorrected=511.0)),
    ),
    "a_bank_without_a_spare_row": Rule(
        "remap_banks", DEGRADED, "NVIDIA", state(remap_banks_none=1), state(remap_banks_none=0)
    ),
    "more_than_ten_rows_remapped_after_correctable_errors": Rule(
        "corrected_remaps:many",
        WARNING,
        "SuperBench",
        rise("remapped_rows_corrected", 10, 11),
        rise("remapped_rows_corrected", 9, 10),
    ),
    "more_than_ten_of_them_in_a_week": Rule(
        "corrected_remaps:rate",
        DEGRADED,
        "SuperBench",
        rise("remapped_rows_corrected", 0, 11),
        rise("remapped_rows_corrected", 0, 10),
    ),
    "a_double_bit_error_rises": Rule(
        "ecc_uncorrected",
        CONDEMNING,
        "DCGM; Azure",
        rise("ecc_uncorrected_volatile", 0, 1),
        rise("ecc_uncorrected_volatile", 0, 0),
    ),
    "a_double_bit_error_at_first_sight": Rule(
        "ecc_uncorrected",
        CONDEMNING,
        "DCGM; Azure",
        sampled(sample(ecc_uncorrected_volatile=1.0)),
        sampled(sample(ecc_uncorrected_volatile=0.0)),
    ),
    "an_uncorrected_error_of_the_boards_life_at_first_sight": Rule(
        "ecc_history",
        WARNING,
        "Azure",
        sampled(sample(ecc_uncorrected_aggregate=1.0)),
        sampled(sample(ecc_uncorrected_aggregate=0.0)),
    ),
    "an_uncorrected_error_of_the_boards_life_rises": Rule(
        "ecc_uncorrected",
        CONDEMNING,
        "Azure",
        rise("ecc_uncorrected_aggregate", 3, 4),
        rise("ecc_uncorrected_aggregate", 3, 3),
    ),
    "rows_newly_remapped_after_uncorrectable_errors": Rule(
        "row_remap:uncorrected",
        WARNING,
        "NVIDIA",
        rise("remapped_rows_uncorrected", 0, 1),
        rise("remapped_rows_uncorrected", 1, 1),
        reported_by="row_remap_rise",
    ),
    "memory_that_cannot_be_repaired": Rule(
        "unrepairable_memory", CONDEMNING, "NVML", state(unrepairable_memory=1), state(unrepairable_memory=0)
    ),
    "the_driver_asks_for_a_reset": Rule(
        "recovery_action:reset_gpu",
        CONDEMNING,
        "NVML field 230",
        sampled(sample(recovery_action=1.0)),
        sampled(sample(recovery_action=0.0)),
    ),
    "corrected_errors_in_sram": Rule(
        "corrected_errors:sram",
        DEGRADED,
        "Azure",
        rates(ecc_corrected_sram_total=10_001),
        rates(ecc_corrected_sram_total=10_000),
    ),
    "corrected_errors_in_dram": Rule(
        "corrected_errors:dram",
        DEGRADED,
        "Azure",
        rates(ecc_corrected_dram_total=20_000_001),
        rates(ecc_corrected_dram_total=20_000_000),
    ),
    "the_sram_threshold_flag": Rule(
        "sram_threshold",
        CONDEMNING,
        "DCGM; NVML",
        state(sram_threshold_exceeded=1),
        state(sram_threshold_exceeded=0),
    ),
    "63_retired_pages": Rule(
        "retired_pages:used_up",
        CONDEMNING,
        "DCGM",
        state(retired_pages_single_bit=63, retired_pages_double_bit=0),
        state(retired_pages_single_bit=62, retired_pages_double_bit=0),
    ),
    "more_than_15_pages_after_double_bit_errors_two_of_them_in_a_week": Rule(
        "retired_pages:week",
        CONDEMNING,
        "DCGM",
        retired(14, 16, 7 * DAY - SECOND),
        retired(13, 15, 7 * DAY - SECOND),
    ),
    "retired_pages_that_wait": Rule(
        "retired_pages:pending",
        DEGRADED,
        "DCGM",
        state(retired_pages_pending=1),
        state(retired_pages_pending=0),
    ),
    "a_corrupt_inforom": Rule("inforom", DEGRADED, "NVSentinel", state(inforom_valid=0), state(inforom_valid=1)),
    "off_the_bus": Rule("gpu_lost", CONDEMNING, "NVSentinel", sampled(lost_sample(NOW_MS)), sampled(sample())),
}
