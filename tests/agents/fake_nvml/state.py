"""The mapped file that drives the fake library: the same layout as in ``fake_nvml.c``, changed live by a test."""

import ctypes
import mmap
from enum import IntFlag
from pathlib import Path

MAX_GPUS = 16
MIB = 1024 * 1024


class Group(IntFlag):
    """Groups of functions that a test makes a GPU not support, or fail at."""

    SERIAL = 1 << 0
    TEMPERATURE = 1 << 1
    MARGIN = 1 << 2
    POWER = 1 << 3
    ENERGY = 1 << 4
    ECC = 1 << 5
    REMAP = 1 << 6
    MIG = 1 << 7
    MEMORY_TEMPERATURE = 1 << 8
    RECOVERY = 1 << 9
    LINK_COUNTERS = 1 << 10
    EVENTS = 1 << 11
    PROCESSES = 1 << 12
    REGISTRATION = 1 << 13
    MODULE = 1 << 14
    UTILISATION = 1 << 15
    SRAM = 1 << 16
    HISTOGRAM = 1 << 17
    RETIRED = 1 << 18
    UNREPAIRABLE = 1 << 19
    INFOROM = 1 << 20
    PERSISTENCE = 1 << 21
    THRESHOLDS = 1 << 22
    REMOTE = 1 << 23
    FABRIC = 1 << 24
    PLACES = 1 << 25
    DURATIONS = 1 << 26
    SYMBOLS = 1 << 27
    AER = 1 << 28
    GPM = 1 << 29
    C2C = 1 << 30
    LINK_BYTES = 1 << 31


class FakeGpu(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("serial", ctypes.c_char * 32),
        ("memory_total", ctypes.c_uint64),
        ("memory_used", ctypes.c_uint64),
        ("energy_mj", ctypes.c_uint64),
        ("clock_reasons", ctypes.c_uint64),
        ("ecc", ctypes.c_uint64 * 4),
        ("link_counters", ctypes.c_uint64 * 5),
        ("ecc_corrected", ctypes.c_uint64 * 4),
        ("held_down_ns", ctypes.c_uint64 * 3),
        ("correctable_errors", ctypes.c_uint64),
        ("symbol_errors", ctypes.c_uint64),
        ("ill_link_errors", ctypes.c_uint64),
        ("c2c_errors", ctypes.c_uint64 * 3),
        ("link_bytes", ctypes.c_uint64 * 2),
        ("gpm", ctypes.c_double * 6),
        ("temperature", ctypes.c_int32),
        ("margin", ctypes.c_int32),
        ("memory_temperature", ctypes.c_int32),
        ("power_mw", ctypes.c_uint32),
        ("sm_clock", ctypes.c_uint32),
        ("memory_clock", ctypes.c_uint32),
        ("gpu_util", ctypes.c_uint32),
        ("memory_util", ctypes.c_uint32),
        ("num_processes", ctypes.c_uint32),
        ("remap", ctypes.c_uint32 * 4),
        ("recovery_action", ctypes.c_uint32),
        ("pcie_generation", ctypes.c_uint32),
        ("pcie_width", ctypes.c_uint32),
        ("pcie_replays", ctypes.c_uint32),
        ("num_links", ctypes.c_uint32),
        ("links_up", ctypes.c_uint32),
        ("mig_mode", ctypes.c_uint32),
        ("ecc_mode", ctypes.c_uint32),
        ("field_type", ctypes.c_uint32),
        ("is_lost", ctypes.c_uint32),
        ("hang_ms", ctypes.c_uint32),
        ("unsupported", ctypes.c_uint32),
        ("failing", ctypes.c_uint32),
        ("failure_code", ctypes.c_uint32),
        ("pending_xid", ctypes.c_uint32),
        ("is_watched", ctypes.c_uint32),
        ("ill_link", ctypes.c_uint32),
        ("sram_exceeded", ctypes.c_uint32),
        ("remap_banks", ctypes.c_uint32 * 5),
        ("retired", ctypes.c_uint32 * 2),
        ("retired_pending", ctypes.c_uint32),
        ("unrepairable", ctypes.c_uint32),
        ("inforom_code", ctypes.c_uint32),
        ("num_validations", ctypes.c_uint32),
        ("persistence", ctypes.c_uint32),
        ("set_limit_mw", ctypes.c_uint32),
        ("thresholds", ctypes.c_uint32 * 4),
        ("pcie_max_generation", ctypes.c_uint32),
        ("pcie_max_width", ctypes.c_uint32),
        ("links_to_nothing", ctypes.c_uint32),
        ("fabric_state", ctypes.c_uint32),
        ("fabric_status", ctypes.c_uint32),
        ("fabric_health", ctypes.c_uint32),
        ("fabric_clique", ctypes.c_uint32),
        ("fabric_version", ctypes.c_uint32),
        ("fabric_cluster", ctypes.c_uint32),
        ("link_mb_per_s", ctypes.c_uint32),
        ("vbios_build", ctypes.c_uint32),
        ("application_clock", ctypes.c_uint32),
        ("pending_change", ctypes.c_uint32),
        ("registered", ctypes.c_uint32),
        ("event_types", ctypes.c_uint32),
        ("unheard_types", ctypes.c_uint32),
        ("num_gpm_samples", ctypes.c_uint32),
        ("num_gpm_kept", ctypes.c_uint32),
        ("repairs", ctypes.c_uint32 * 2),
        ("p2p_status", ctypes.c_uint32),
        ("ill_ber", ctypes.c_uint32),
    )


class FakeState(ctypes.Structure):
    _fields_ = (
        ("size_of_gpu", ctypes.c_uint32),
        ("init_code", ctypes.c_uint32),
        ("num_gpus", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("gpus", FakeGpu * MAX_GPUS),
    )
    gpus: ctypes.Array[FakeGpu]
    init_code: int
    num_gpus: int
    size_of_gpu: int


def uuid_of(index: int) -> str:
    return f"GPU-fa4e0000-0000-4000-8000-{index:012d}"


def map_state(path: Path, num_gpus: int) -> FakeState:
    """A new file of ``num_gpus`` healthy, busy H100s; what is set on the answer is seen by the library at once."""
    path.write_bytes(bytes(ctypes.sizeof(FakeState)))
    with path.open("r+b") as file:
        state = FakeState.from_buffer(mmap.mmap(file.fileno(), 0))
    state.size_of_gpu = ctypes.sizeof(FakeGpu)
    state.num_gpus = num_gpus
    for index in range(MAX_GPUS):
        _make_healthy(state.gpus[index], index)
    return state


def _make_healthy(gpu: FakeGpu, index: int) -> None:
    readings: dict[str, object] = {
        "uuid": uuid_of(index).encode(),
        "name": b"NVIDIA H100 80GB HBM3",
        "serial": b"16530%08d" % index,
        "memory_total": 81_559 * MIB,
        "memory_used": 4_096 * MIB,
        "energy_mj": 5_000_000,
        "temperature": 41,
        "margin": 46,
        "memory_temperature": 52,
        "power_mw": 312_500,
        "sm_clock": 1_980,
        "memory_clock": 2_619,
        "gpu_util": 87,
        "memory_util": 34,
        "num_processes": 1,
        "pcie_generation": 5,
        "pcie_width": 16,
        "num_links": 18,
        "links_up": 18,
        "ecc_mode": 1,
        "field_type": 1,
        "remap_banks": (640, 0, 0, 0, 0),
        "persistence": 1,
        "set_limit_mw": 700_000,
        "thresholds": (92, 89, 95, 87),
        "pcie_max_generation": 5,
        "pcie_max_width": 16,
        "fabric_state": 3,
        "fabric_clique": 7,
        "fabric_version": 3,
        "link_mb_per_s": 26_562,
        "vbios_build": 1,
        "application_clock": 1_980,
        "event_types": 0xFF9F,
    }
    for name, value in readings.items():
        setattr(gpu, name, value)
