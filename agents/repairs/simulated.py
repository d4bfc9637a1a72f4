"""Verbs on simulated GPUs: they remove the simulated faults that the verb would fix on a real GPU."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agents.probes.faults import Fault, FaultFileError, Kind, clear_those, read_faults
from agents.probes.interface import GpuIdentity
from agents.probes.simulated_readings import is_lost_by
from agents.repairs.actions import HandsError
from muster.domain.evidence.repairs import HOST_SCOPE, RepairVerb

REPAIRED: Final[frozenset[Kind]] = frozenset(
    {"xid", "late", "ecc_corrected", "ecc_uncorrected", "row_remap_pending", "clock_event", "nvlink_down"}
)
"""Faults that a reset fixes: a hot or slow GPU, wrong results and used-up spare rows stay."""
_FOUND_BY_DIAGNOSIS: Final[frozenset[Kind]] = frozenset({"wrong_result", "slow", "row_remap_failure", "nvlink_down"})
_REPAIR_SIGNS: Final[Mapping[RepairVerb, str]] = {
    RepairVerb.GPU_RESET: "reset",
    RepairVerb.DRIVER_RELOAD: "driver reload",
    RepairVerb.REBOOT: "reboot, in which the agent stayed",
}


@dataclass(frozen=True, slots=True)
class SimulatedHands:
    """Verbs on simulated GPUs. ``gpus``: of the host. ``faults_path``: their faults; None: none."""

    gpus: frozenset[str]
    faults_path: Path | None
    is_simulated: bool = True

    def do(self, verb: RepairVerb, gpu: GpuIdentity, deadline_s: float, stop: threading.Event) -> str:  # noqa: ARG002  # of the interface; it takes no time
        try:
            if verb is RepairVerb.DIAGNOSIS:
                return self._diagnose(gpu)
            return self._mend(verb, gpu)
        except FaultFileError as error:
            raise HandsError(str(error)) from error

    def _mend(self, verb: RepairVerb, gpu: GpuIdentity) -> str:
        whose = self.gpus if verb in HOST_SCOPE else frozenset({gpu.uuid})
        if verb is not RepairVerb.REBOOT and any(is_lost_by(each) for each in self._faults(gpu)):
            raise HandsError(f"{gpu.uuid} is lost: no {_REPAIR_SIGNS[verb]} reaches it (simulated)")

        def is_repaired(fault: Fault) -> bool:
            is_there = is_lost_by(fault) and verb is RepairVerb.REBOOT
            return fault.gpu in whose and (is_there or (fault.kind in REPAIRED and not is_lost_by(fault)))

        num_cleared = 0 if self.faults_path is None else clear_those(self.faults_path, is_repaired)
        return f"simulated {_REPAIR_SIGNS[verb]}: {num_cleared} simulated faults were removed"

    def _diagnose(self, gpu: GpuIdentity) -> str:
        found = sorted(
            {each.kind for each in self._faults(gpu) if each.kind in _FOUND_BY_DIAGNOSIS or is_lost_by(each)}
        )
        if found:
            raise HandsError(f"simulated diagnosis: {', '.join(found)}")
        return "simulated diagnosis: nothing found"

    def _faults(self, gpu: GpuIdentity) -> list[Fault]:
        every = () if self.faults_path is None else read_faults(self.faults_path)
        return [fault for fault in every if fault.gpu == gpu.uuid]
