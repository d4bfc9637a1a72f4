"""Repairs of GPUs: what is done, and how it ended."""

from enum import StrEnum


class RepairAction(StrEnum):
    RESET = "reset"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    FIELD_DIAGNOSIS = "field_diagnosis"
    SWAP = "swap"
    OTHER = "other"


class RepairOutcome(StrEnum):
    """How a repair ended. CONDEMNED: new condemning evidence came during it."""

    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CONDEMNED = "condemned"
    RETIRED = "retired"
