"""Faults of simulated GPUs: a small JSON file that a person, the tour or a test writes and the probe reads live.

``{"faults": [{"gpu": "GPU-…", "kind": "xid", "code": 95, "id": "…", "at_ms": 1790000000000}]}`` Writers replace the
file as a whole and take turns by a lock file next to it, so a reader never sees half of it.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from muster.domain.evidence.state_readings import GPU_STATE
from muster.domain.ids import GpuUuid

Kind = Literal[
    "xid",
    "lost",
    "late",
    "ecc_corrected",
    "ecc_uncorrected",
    "row_remap_pending",
    "row_remap_failure",
    "clock_event",
    "heat",
    "nvlink_down",
    "wrong_result",
    "slow",
    "state",
    "rate",
]


LINK_COUNTERS: Final = ("crc_errors", "replays", "recoveries", "symbol_errors")
GPU_COUNTERS: Final = (
    "pcie_replays",
    "pcie_correctable_errors",
    "ecc_corrected_sram",
    "ecc_corrected_dram",
    "sw_thermal_s",
    "hw_thermal_s",
    "power_brake_s",
)
"""Counters of ``GPU_RATES``: of a link, and of the whole GPU."""
PLANTED: Final[Mapping[str, Collection[str]]] = {"state": GPU_STATE, "rate": GPU_COUNTERS}
"""Kind of fault → the names that its ``values`` may have, where it is not about a link."""


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One fault of one GPU, from ``at_ms`` (since 1970; 0: at once) until it is cleared.

    ``code`` is the XID. ``count``: errors, or links that are down. ``bits``: clock event reasons, NVML's.
    ``wrong_result`` and ``slow`` show in a burn-in alone: wrong results at the right speed, or right results, too
    slowly. ``state`` puts ``values`` in place of a healthy GPU's, by the names of ``state_readings.GPU_STATE``;
    ``rate`` lets counters of the GPU, or of ``link``, rise by ``values`` a minute, by the names of ``GPU_RATES``.
    ``is_in_kernel_log``: the kernel log reports the XID a second time, as with real ones.
    """

    gpu: str
    kind: Kind
    id: str = ""
    at_ms: Annotated[int, Meta(ge=0)] = 0
    code: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    count: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 1
    bits: Annotated[int, Meta(ge=0)] = 0x8
    temperature_c: Annotated[float, Meta(ge=0, le=200)] = 95.0
    link: Annotated[int, Meta(ge=0, lt=64)] | None = None
    values: dict[str, Annotated[float, Meta(ge=0, le=1e12)]] = msgspec.field(default_factory=dict)
    is_in_kernel_log: bool = False

    def __post_init__(self) -> None:
        if self.kind == "xid" and self.code is None:
            raise ValueError("an xid needs its code")
        if self.kind in PLANTED:
            self._require_values(PLANTED[self.kind] if self.link is None else LINK_COUNTERS)

    def _require_values(self, names: Collection[str]) -> None:
        unknown = sorted(set(self.values) - set(names))
        if unknown or not self.values:
            fault = f"there is no {', '.join(unknown)}" if unknown else "it needs some"
            raise ValueError(f"values of a {self.kind}: {fault}; there are: {', '.join(sorted(names))}")

    @property
    def key(self) -> str:
        """Return the identity of this fault, also where a person wrote it without an id."""
        return self.id or f"{self.gpu}:{self.kind}:{self.code}:{self.at_ms}"


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    faults: tuple[Fault, ...] = ()


class FaultFileError(Exception):
    """The file is there and is no document of faults."""


def read_faults(path: Path) -> tuple[Fault, ...]:
    """Return the faults; no file means none. Raises FaultFileError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Document).faults
    except FileNotFoundError:
        return ()
    except msgspec.MsgspecError as error:
        raise FaultFileError(f"{path} is no document of faults: {error}") from error


def write_fault(path: Path, fault: Fault) -> Fault:
    """Add a fault, and return it with its id and its time, now where it had none. Raises FaultFileError."""
    stamped = msgspec.structs.replace(
        fault, id=fault.id or secrets.token_hex(8), at_ms=fault.at_ms or time.time_ns() // 1_000_000
    )
    with _turn(path):
        _replace(path, (*read_faults(path), stamped))
    return stamped


def clear_faults(path: Path, gpu: GpuUuid | None = None) -> int:
    """Remove the faults of one GPU, or all of them, and return how many there were. Raises FaultFileError."""
    with _turn(path):
        before = read_faults(path)
        left = tuple(fault for fault in before if gpu is not None and fault.gpu != gpu)
        if len(left) < len(before):
            _replace(path, left)
    return len(before) - len(left)


def clear_those(path: Path, is_over: Callable[[Fault], bool]) -> int:
    """Remove the faults for which ``is_over`` is true, and return how many there were. Raises FaultFileError."""
    with _turn(path):
        before = read_faults(path)
        left = tuple(fault for fault in before if not is_over(fault))
        if len(left) < len(before):
            _replace(path, left)
    return len(before) - len(left)


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(path: Path, faults: tuple[Fault, ...]) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(_Document(faults)), indent=2) + b"\n")
    new.replace(path)


class FaultFile:
    """A reader of the file: it is read again only when it changed. A broken file leaves the known faults."""

    def __init__(self, path: Path | None, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain = complain
        self._seen: tuple[int, int, int] | None = None
        self._faults: tuple[Fault, ...] = ()

    @property
    def has_changed(self) -> bool:
        """Return whether the next ``faults`` reads the file: one ``stat``."""
        return self._stamp() != self._seen

    def faults(self) -> tuple[Fault, ...]:
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._reread()
        return self._faults

    def _stamp(self) -> tuple[int, int, int] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _reread(self) -> None:
        try:
            self._faults = read_faults(self._path) if self._path is not None else ()
        except FaultFileError as error:
            self._complain(str(error))
