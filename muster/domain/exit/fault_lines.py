"""The table of log lines about a fault, each with the part that it has in the fault. One table for two readers.

``exit_signs`` reads it for an attempt that has ended, ``watch/lines`` for one that runs. A row holds whole phrases, old
forms and new ones: single words such as "Xid" or "error" occur in too many harmless lines.

Sources: PyTorch's ``ProcessGroupNCCL.cpp``, gloo's transports, NCCL's ``net_ib``, ``socket.cc``, ``bootstrap.cc`` and
``debug.cc``, the CUDA runtime's error strings, the loaders of PyTorch and safetensors, the Linux kernel, and the
messages of Megatron-LM, fairseq, Lightning and DeepSpeed about a loss that is no number.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muster.domain.states import Cause


class Role(StrEnum):
    """Part that a line or an observation has in a fault. A cascade or a symptom is never the cause."""

    ROOT = "root"
    CASCADE = "cascade"
    SYMPTOM = "symptom"


class LineSource(StrEnum):
    """The component that writes a line."""

    NCCL = "nccl"
    C10D = "c10d"
    GLOO = "gloo"
    CUDA = "cuda"
    KERNEL = "kernel"
    LOADER = "loader"
    LAUNCHER = "launcher"
    PROGRAM = "program"


class Fault(StrEnum):
    """The kind of fault that a line is about. ``peer``: another rank or host is lost; ``wait``: a rank waited."""

    NETWORK = "network"
    GPU = "gpu"
    MEMORY = "memory"
    DESYNC = "desync"
    CONFIGURATION = "configuration"
    LOADER = "loader"
    STORAGE = "storage"
    NUMERIC = "numeric"
    EXCEPTION = "exception"
    PEER = "peer"
    WAIT = "wait"
    LIFECYCLE = "lifecycle"


class SignKind(StrEnum):
    """The group of ``exit_signs`` to which a row belongs. ``none``: it says nothing about the end of a rank."""

    NONE = "none"
    ROOT = "root"
    TIMEOUT = "timeout"
    CASCADE = "cascade"
    GPU = "gpu"
    OUT_OF_GPU_MEMORY = "out_of_gpu_memory"


@dataclass(frozen=True, slots=True)
class FaultLine:
    """One row. A line is of this row if it holds all tokens of one of the ``alternatives``.

    ``source``: decides which form the line of a running job must have (``watch/lines``). ``role``: in a running job.
    ``details``: patterns with the named groups that the line may hold. Each is searched by itself and holds no ``.*``:
    a program may print any line, and no line may cost more than its length. ``sign``, ``cause``: for a rank that ended.
    """

    name: str
    source: LineSource
    fault: Fault
    role: Role
    alternatives: tuple[tuple[str, ...], ...]
    details: tuple[str, ...] = ()
    sign: SignKind = SignKind.NONE
    cause: Cause = Cause.USER_ERROR


def _any(*phrases: str | tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple((each,) if isinstance(each, str) else each for each in phrases)


_PEER: Final = r"from peer (?P<peer>[0-9A-Za-z_.:%-]{1,80}?)(?:<(?P<port>\d{1,5})>)? with"
_HCA: Final = r" hca (?P<hca>\w{1,32})"
_EVENT: Final = r"NET/IB ?: (?P<hca>\w{1,32}):(?P<hca_port>\d{1,3}) Got"
_OF_PG: Final = r"PG (?:ID \d{1,9} PG GUID )?(?P<group>[\w.-]{1,64})"
_SEQUENCE: Final = r"at (?:work|work sequence id): (?P<sequence>\d{1,18})"
_WORK: Final = (
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), last completed (?:NCCL )?work: (?P<completed>-?\d{1,18})"
)
_XID: Final = (
    r"Xid \((?:PCI:(?P<pci>[0-9a-fA-F:.]{4,16})|(?P<gpu>GPU-[0-9A-Za-z-]{1,60}))\): (?P<xid>\d{1,4}), "
    r"(?:pid=(?P<pid>\d{1,9}))?"
)
"""The kernel names a PCI address. The control plane, which has the agent's event, names the GPU."""
_NCCL, _C10D, _GLOO, _CUDA = LineSource.NCCL, LineSource.C10D, LineSource.GLOO, LineSource.CUDA
_KERNEL, _PROGRAM = LineSource.KERNEL, LineSource.PROGRAM

_NETWORK_ROWS: Final = (
    # 12: the transport's retries are used up. 5, flushed, is what follows from that. NCCL before 2.12: "with error".
    FaultLine(
        "nccl.ib_retry_exceeded", _NCCL, Fault.NETWORK, Role.ROOT,
        _any(
            ("Got completion from peer", "status=12 "),
            ("Got completion from peer", "(12) opcode"),
            ("Got completion from peer", "with error 12,"),
        ),
        (_PEER, _HCA), SignKind.ROOT, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "nccl.ib_flushed", _NCCL, Fault.PEER, Role.CASCADE,
        _any(
            ("Got completion from peer", "status=5 "),
            ("Got completion from peer", "(5) opcode"),
            ("Got completion from peer", "with error 5,"),
        ),
        (_PEER, _HCA), SignKind.CASCADE, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "nccl.ib_completion", _NCCL, Fault.NETWORK, Role.ROOT,
        _any(("NET/IB", "Got completion from peer", "with error "), ("NET/IB", "Got completion from peer", "status=")),
        (_PEER, _HCA),
    ),
    FaultLine(
        "nccl.ib_port_error", _NCCL, Fault.NETWORK, Role.ROOT,
        _any(("async event", "port error"), ("async fatal event",), ("async event", "local catastrophic error")),
        (_EVENT,), SignKind.ROOT, Cause.NCCL_TIMEOUT,
    ),
    FaultLine("nccl.ib_event", _NCCL, Fault.NETWORK, Role.SYMPTOM, _any("async event"), (_EVENT,)),
    FaultLine(
        "nccl.system_error", _NCCL, Fault.NETWORK, Role.ROOT, _any("unhandled system error"),
        (), SignKind.ROOT, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "nccl.internal_error", _NCCL, Fault.NETWORK, Role.ROOT, _any("ncclInternalError"),
        (), SignKind.ROOT, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "nccl.connect", _NCCL, Fault.PEER, Role.CASCADE,
        _any("exceeded error retry count after"),
        (r"connect to (?P<peer>[0-9A-Za-z_.:%-]{1,80}?)<(?P<port>\d{1,5})>",), SignKind.CASCADE, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "nccl.connect_retry", _NCCL, Fault.PEER, Role.SYMPTOM,
        _any(("connect to ", "retrying (")),
        (r"connect to (?P<peer>[0-9A-Za-z_.:%-]{1,80}?)<(?P<port>\d{1,5})>",),
    ),
)  # fmt: skip

_NCCL_ROWS: Final = (
    # Two attempts at one meeting: of our own making, and never the program's.
    FaultLine(
        "nccl.duplicate_rank", _NCCL, Fault.CONFIGURATION, Role.ROOT,
        _any(("Bootstrap Root : rank", "has already checked in")),
        (r"rank (?P<rank>\d{1,9}) of",), SignKind.ROOT, Cause.LAUNCH_FAILED,
    ),
    FaultLine("nccl.version", _NCCL, Fault.CONFIGURATION, Role.ROOT, _any("Mismatched NCCL version detected")),
    FaultLine("nccl.truncated", _NCCL, Fault.DESYNC, Role.ROOT, _any("Message truncated : received")),
    FaultLine(
        "nccl.cuda_failure", _NCCL, Fault.PEER, Role.CASCADE, _any("NCCL WARN Cuda failure", "unhandled cuda error"),
        (), SignKind.CASCADE, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "nccl.remote_exit", _NCCL, Fault.PEER, Role.CASCADE,
        _any("remote process exited or there was a network error"), (), SignKind.CASCADE, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "nccl.abort", _NCCL, Fault.PEER, Role.CASCADE, _any("is in abort state"),
        (), SignKind.CASCADE, Cause.NCCL_TIMEOUT,
    ),
    FaultLine("nccl.usage", _NCCL, Fault.CONFIGURATION, Role.ROOT, _any(("NCCL error", "invalid usage"))),
)  # fmt: skip

_C10D_ROWS: Final = (
    FaultLine(
        "c10d.timeout", _C10D, Fault.WAIT, Role.SYMPTOM, _any("Watchdog caught collective operation timeout"),
        (r"WorkNCCL\(SeqNum=(?P<sequence>\d{1,18}), OpType=(?P<operation>\w{1,40})",), SignKind.TIMEOUT,
        Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "c10d.status", _C10D, Fault.WAIT, Role.SYMPTOM, _any("failure detected by watchdog at work sequence id"),
        (_OF_PG, _SEQUENCE, _WORK), SignKind.CASCADE, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "c10d.status_of_2024", _C10D, Fault.WAIT, Role.SYMPTOM,
        _any(("(either an error or timeout) detected by watchdog", "last enqueued NCCL work")),
        (_OF_PG, _SEQUENCE, _WORK),
    ),
    FaultLine(
        "c10d.dump_signal", _C10D, Fault.WAIT, Role.CASCADE,
        _any("Received a dump signal due to a collective timeout"),
        (r"due to a collective timeout from  ?rank (?P<named>\d{1,9})",), SignKind.CASCADE, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "c10d.dump_seen", _C10D, Fault.WAIT, Role.CASCADE,
        _any("Observed flight recorder dump signal from another rank"), (), SignKind.CASCADE, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "c10d.watchdog_stuck", _C10D, Fault.GPU, Role.ROOT, _any("ProcessGroupNCCL's watchdog got stuck for"),
        (r"got stuck for (?P<seconds>\d{1,9}) seconds",), SignKind.ROOT, Cause.HANG,
    ),
    FaultLine(
        "c10d.desync", _C10D, Fault.DESYNC, Role.ROOT, _any("Detected mismatch between collectives on ranks"),
        (
            r"on ranks\. Rank (?P<rank>\d{1,9}) is running collective: ",
            r"SequenceNumber=(?P<sequence>\d{1,18}), OpType=(?P<operation>\w{1,40})",
            r"but Rank (?P<other>\d{1,9}) is running",
        ),
    ),
)  # fmt: skip

_GLOO_ROWS: Final = (
    FaultLine(
        "gloo.barrier", _GLOO, Fault.WAIT, Role.SYMPTOM, _any("failed to pass monitoredBarrier"),
        (r"Ranks? (?P<named>\d{1,9}(?:, \d{1,9}){0,1023}) failed to pass",), SignKind.TIMEOUT, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "gloo.mismatch", _GLOO, Fault.DESYNC, Role.ROOT,
        _any("Is there a distributed collective mismatch in your code?"),
        (r"(?P<received>\d{1,18}) vs (?P<size>\d{1,18})",),
    ),
    FaultLine(
        "gloo.timeout", _GLOO, Fault.WAIT, Role.SYMPTOM, _any(("Timed out waiting", "ms for")),
        (), SignKind.TIMEOUT, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "gloo.mesh", _GLOO, Fault.PEER, Role.CASCADE, _any("Gloo connectFullMesh failed"),
        (), SignKind.CASCADE, Cause.NCCL_TIMEOUT,
    ),
    FaultLine(
        "gloo.peer_closed", _GLOO, Fault.PEER, Role.CASCADE,
        _any("Connection closed by peer", "Connection reset by peer", "Broken pipe"),
        (r"by peer \[(?P<peer>[0-9a-fA-F.:]{1,45})\](?::(?P<port>\d{1,5}))?",), SignKind.CASCADE, Cause.NCCL_TIMEOUT,
    ),
)  # fmt: skip

_GPU_ROWS: Final = (
    FaultLine(
        "cuda.gpu_lost", _CUDA, Fault.GPU, Role.ROOT,
        _any(
            "uncorrectable ECC error encountered",
            "uncorrectable NVLink error detected",
            "has fallen off the bus",
            "GPU is lost",
            "Invalid access of peer GPU memory over nvlink or a hardware error",
            "CUDA_ERROR_CONTAINED",
        ),
        (), SignKind.GPU, Cause.USER_ERROR,
    ),
    FaultLine(
        "cuda.launch_failure", _CUDA, Fault.GPU, Role.SYMPTOM,
        _any("unspecified launch failure", "an illegal memory access was encountered"),
    ),
    FaultLine(
        "cuda.out_of_memory", _CUDA, Fault.MEMORY, Role.ROOT,
        _any("CUDA out of memory", "torch.OutOfMemoryError", "CUBLAS_STATUS_ALLOC_FAILED"),
        (), SignKind.OUT_OF_GPU_MEMORY, Cause.GPU_OOM,
    ),
)  # fmt: skip

_KERNEL_ROWS: Final = (
    FaultLine(
        "kernel.xid", _KERNEL, Fault.GPU, Role.ROOT, _any("NVRM: Xid (PCI:", "NVRM: Xid (GPU-"),
        (_XID,),
    ),
    FaultLine(
        "kernel.oom", _KERNEL, Fault.MEMORY, Role.ROOT, _any("Out of memory: Killed process", "oom-kill:constraint="),
        (r"Killed process (?P<pid>\d{1,9})",),
    ),
    FaultLine(
        "kernel.nic", _KERNEL, Fault.NETWORK, Role.ROOT,
        _any(
            ("mlx5_core ", "Link down"), ("mlx5_core ", "Fatal error"), ("mlx5_core ", "health compromised"),
            ("mlx5_core ", "health poll failed"), ("mlx5_core ", "Cable error"), ("mlx5_core ", "timeout. Will cause"),
            ("NETDEV WATCHDOG: ", "transmit queue"), ("NIC Link is Down",),
        ),
        (r"mlx5_core (?P<pci>[0-9a-f:.]{7,16})",),
    ),
    FaultLine(
        "kernel.hung_task", _KERNEL, Fault.STORAGE, Role.SYMPTOM, _any(("INFO: task ", "blocked for more than")),
        (r"task (?P<task>.{1,64}?):(?P<pid>\d{1,9}) blocked",),
    ),
    FaultLine(
        "kernel.storage", _KERNEL, Fault.STORAGE, Role.ROOT,
        _any(
            ("nfs: server ", "not responding"), "Remounting filesystem read-only", ("blk_update_request: I/O error",),
            ("Buffer I/O error on",), ("lustre", "Connection to ", "was lost"),
        ),
    ),
)  # fmt: skip

_OTHER_ROWS: Final = (
    FaultLine(
        "loader.killed", LineSource.LOADER, Fault.LOADER, Role.ROOT,
        _any(
            ("DataLoader worker (pid", "exited unexpectedly"),
            ("DataLoader worker (pid", "is killed by signal"),
            ("DataLoader timed out after",),
        ),
        (r"pid\(?s?\)? ?(?P<pid>\d{1,9})",),
    ),
    FaultLine(
        "launcher.killed", LineSource.LAUNCHER, Fault.LIFECYCLE, Role.SYMPTOM,
        _any(("Unable to shutdown process", "forcefully exiting via")), (r"process (?P<pid>\d{1,9})",),
    ),
    FaultLine(
        "checkpoint.unreadable", _PROGRAM, Fault.STORAGE, Role.ROOT,
        _any("PytorchStreamReader failed", "Error while deserializing header"), (), SignKind.ROOT,
        Cause.CHECKPOINT_CORRUPT,
    ),
    FaultLine(
        "values.not_finite", _PROGRAM, Fault.NUMERIC, Role.ROOT,
        _any(
            "found NaN in local", "found Inf in local", "Minimum loss scale reached",
            "Current loss scale already at minimum", ("The loss returned in `training_step` is", "nan or inf"),
        ),
        (), SignKind.ROOT, Cause.DIVERGED,
    ),
)  # fmt: skip

FAULT_LINES: Final = (
    *_NCCL_ROWS, *_NETWORK_ROWS, *_C10D_ROWS, *_GLOO_ROWS, *_GPU_ROWS, *_KERNEL_ROWS, *_OTHER_ROWS
)  # fmt: skip
"""The first row that matches is the line's."""
