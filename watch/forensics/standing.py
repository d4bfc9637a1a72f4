"""The standing of one rank in a hang: whether it only waits in a collective, or what else holds it.

A rank that waits in a collective is a victim. Any other standing makes it a suspect, if others wait for it::

    all_reduce   torch/distributed/distributed_c10d.py:3020     waits in a collective
    sync_grads   /app/train.py:61                               the program's frame, which the user knows

The innermost frame that is decisive counts; frames of the standard library say nothing by themselves.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from watch.phases import Phase
from watch.reports import Frame, ProcessState, RankReport, StackSource


class Standing(StrEnum):
    """What a rank does while its job hangs; ``unknown``: neither stack nor process state is known."""

    COLLECTIVE = "collective"
    BACKWARD = "backward"
    DATA_LOADER = "data_loader"
    STORAGE = "storage"
    GPU = "gpu"
    PYTHON = "python"
    COMPILE = "compile"
    STOPPED = "stopped"
    DEAD = "dead"
    UNKNOWN = "unknown"


VICTIMS: Final = frozenset({Standing.COLLECTIVE, Standing.BACKWARD, Standing.UNKNOWN})
"""Standings that accuse no rank: a backward pass waits for the collectives that it starts."""
CAUSE_OF_STANDING: Final = {
    Standing.DATA_LOADER: "data_loader",
    Standing.STORAGE: "storage",
    Standing.GPU: "gpu",
    Standing.PYTHON: "endless_python",
    Standing.COMPILE: "endless_python",
    Standing.STOPPED: "stopped_process",
    Standing.DEAD: "dead_rank",
}
DEAD_LOOP: Final = "dead_loop"
"""The cause where a rank without a sensor has used the processor for hours, and done nothing else."""
_OWN: Final = ("muster/train/",)
_COLLECTIVE_FILES: Final = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/c10d_logger.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/rendezvous.py",
    "torch/distributed/algorithms/join.py",
    "torch/distributed/fsdp/",
    "torch/distributed/_composable/",
    "torch/distributed/tensor/",
    "torch/distributed/pipelining/",
    "torch/distributed/nn/",
    "torch/nn/parallel/distributed.py",
    "megatron/core/parallel_state.py",
    "deepspeed/comm/",
    "horovod/",
)
_LOADER_FILES: Final = ("torch/utils/data/", "torchdata/", "muster/train/data/", "streaming/base/", "webdataset/")
_STORAGE_FILES: Final = (
    "torch/serialization.py",
    "torch/distributed/checkpoint/",
    "muster/train/checkpoint/",
    "safetensors/",
    "fsspec/",
    "s3fs/",
    "tensorstore",
)
_GPU_FILES: Final = ("torch/cuda/__init__.py", "torch/cuda/streams.py", "torch/cuda/graphs.py", "torch/accelerator/")
_COMPILE_FILES: Final = ("torch/_inductor/", "torch/_dynamo/", "triton/compiler/", "torch/_functorch/")
_BACKWARD_FILES: Final = ("torch/autograd/", "torch/_tensor.py")
_DECISIVE: Final = (
    (_COLLECTIVE_FILES, Standing.COLLECTIVE),
    (_LOADER_FILES, Standing.DATA_LOADER),
    (_STORAGE_FILES, Standing.STORAGE),
    (_GPU_FILES, Standing.GPU),
    (_COMPILE_FILES, Standing.COMPILE),
    (_BACKWARD_FILES, Standing.BACKWARD),
)
_NEUTRAL_PLACES: Final = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen", "<string>", "/pytorch/torch/")
_NEUTRAL_FILES: Final = frozenset(
    {"selectors.py", "threading.py", "queue.py", "queues.py", "connection.py", "socket.py", "ssl.py", "subprocess.py"}
    | {"popen_fork.py", "process.py", "runpy.py", "contextlib.py"}
)
_NEUTRAL_PACKAGES: Final = frozenset({"multiprocessing", "concurrent", "asyncio", "http", "torch"})
_KERNEL_STORAGE: Final = (
    "nfs", "rpc_", "__rpc", "fuse_", "ext4_", "xfs_", "jbd2_", "btrfs_", "blk_", "io_schedule", "submit_bio", "fsync",
    "vfs_fsync", "ll_", "cl_", "osc_", "ceph_", "lustre", "gpfs", "beegfs", "weka", "wait_on_page", "folio_wait",
    "nvme_", "generic_file_read", "filemap_",
)  # fmt: skip
_KERNEL_GPU: Final = ("nvidia_", "os_acquire_", "rm_ioctl", "uvm_", "nv_", "_nv0", "nvkms")
_KERNEL_SLEEP: Final = ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep")
"""A process sleeps by a call of its own; one that waits for other ranks waits for a lock or a socket."""
_OF_KERNEL: Final = frozenset({"", "kernel"})
"""Files of the kernel's frames: a stack without any file is the kernel's too."""


@dataclass(frozen=True, slots=True)
class Stand:
    """A rank's standing. ``frame``: the program's frame, else the innermost one; ``why``: the observation behind it."""

    standing: Standing
    frame: Frame | None
    why: str

    @property
    def is_suspect(self) -> bool:
        """Return whether the rank does something else than wait for others."""
        return self.standing not in VICTIMS

    @property
    def is_frame_shown(self) -> bool:
        """Return whether its frame belongs in a sentence: the program's line, or what the kernel waits for."""
        if self.frame is None or self.standing is Standing.DEAD:
            return False
        by_kernel = self.frame.file in _OF_KERNEL and self.standing in {Standing.STORAGE, Standing.GPU}
        return by_kernel or is_of_program(self.frame)


def on_gpu_stand(stand: Stand) -> Stand:
    """Return the standing of a rank whose GPU waits in a collective: a victim, wherever its program waits for that."""
    if not stand.is_suspect and stand.standing is not Standing.UNKNOWN:
        return stand
    return Stand(Standing.COLLECTIVE, stand.frame, "its GPU waits in a collective")


def stand_of(rank: RankReport) -> Stand:
    """Return the standing of a rank by its process state, then its stack, then its phase."""
    frame = program_frame(rank.stack)
    if rank.process is ProcessState.STOPPED:
        return Stand(Standing.STOPPED, frame, "its process is stopped (state T)")
    if rank.process in {ProcessState.GONE, ProcessState.ZOMBIE}:
        return Stand(Standing.DEAD, frame, f"its process is {_PROCESS_WORDS[rank.process]}")
    if _is_of_the_kernel(rank):
        return _by_kernel_stack(rank, frame)
    standing = _by_stack(rank.stack)
    if standing is None:
        return _by_phase(rank, frame)
    if standing is Standing.PYTHON:
        return Stand(_python_by_phase(rank), frame, _python_words(rank))
    if standing is Standing.COLLECTIVE and rank.process is ProcessState.BLOCKED:
        return Stand(standing, frame, "its stack is in a collective, and the kernel blocks it (state D)")
    return Stand(standing, frame, _WORDS[standing])


_PROCESS_WORDS: Final = {ProcessState.GONE: "gone", ProcessState.ZOMBIE: "a zombie"}
_WORDS: Final = {
    Standing.COLLECTIVE: "its stack is in a collective",
    Standing.BACKWARD: "its stack is in a backward pass",
    Standing.DATA_LOADER: "its stack is in the data loader",
    Standing.STORAGE: "its stack reads or writes a checkpoint or file",
    Standing.GPU: "its stack waits for the GPU",
    Standing.COMPILE: "its stack is in a compiler",
}


def program_frame(stack: tuple[Frame, ...]) -> Frame | None:
    """Return the innermost frame of the program's own files; else the innermost frame."""
    own = (frame for frame in stack if is_of_program(frame))
    return next(own, stack[0] if stack else None)


def is_of_program(frame: Frame) -> bool:
    """Return whether a frame is of the tenant's files, and not of Python, torch, a package, Muster or the kernel."""
    path = frame.file
    if path in _OF_KERNEL or _is_below(path, _OWN):
        return False
    return not any(part in path for part in _NEUTRAL_PLACES) and not _is_neutral(frame)


def _is_neutral(frame: Frame) -> bool:
    """Return whether a path without its folder, such as ``multiprocessing/connection.py``, is of Python or torch."""
    first, *rest = frame.file.split("/")
    return first in _NEUTRAL_PACKAGES if rest else first in _NEUTRAL_FILES


def _by_stack(stack: tuple[Frame, ...]) -> Standing | None:
    """Return the standing of the innermost decisive frame; None without a stack.

    A frame of the program is decisive only if no loader or writer called it: a data set's own code runs inside the
    loader, and a file object's inside ``torch.save``.
    """
    if not stack:
        return None
    has_loader = any(_is_in(frame, _LOADER_FILES) for frame in stack)
    has_storage = any(_is_in(frame, _STORAGE_FILES) for frame in stack)
    for frame in stack:
        standing = next((standing for files, standing in _DECISIVE if _is_in(frame, files)), None)
        if standing is None and is_of_program(frame):
            standing = Standing.PYTHON
        if standing in {Standing.PYTHON, Standing.STORAGE} and has_loader:
            return Standing.DATA_LOADER
        if standing is Standing.PYTHON and has_storage:
            return Standing.STORAGE
        if standing is not None:
            return standing
    return Standing.COLLECTIVE if any(_is_below(frame.file, _OWN) for frame in stack) else Standing.PYTHON


def _is_in(frame: Frame, places: tuple[str, ...]) -> bool:
    return _is_below(frame.file, places)


def _is_below(path: str, places: tuple[str, ...]) -> bool:
    """Return whether a path has one of these places in it, from the beginning of a folder's name on."""
    return any(f"/{place}" in f"/{path}" for place in places)


def _is_of_the_kernel(rank: RankReport) -> bool:
    if not rank.stack:
        return False
    return rank.stack_source is StackSource.KERNEL or all(frame.file in _OF_KERNEL for frame in rank.stack)


def _by_kernel_stack(rank: RankReport, frame: Frame | None) -> Stand:
    """Return the standing by functions of the kernel: disks, file servers, the GPU's driver and sleep are decisive."""
    for each in rank.stack:
        if each.function.startswith(_KERNEL_STORAGE):
            return Stand(Standing.STORAGE, frame, f"the kernel waits in {each.function} for storage")
        if each.function.startswith(_KERNEL_GPU):
            return Stand(Standing.GPU, frame, f"the kernel waits in {each.function} for the GPU")
    sleeps = next((each.function for each in rank.stack if each.function.startswith(_KERNEL_SLEEP)), None)
    if sleeps is not None and rank.phase is not Phase.DATA:
        return Stand(_python_by_phase(rank), frame, f"it sleeps by a call of its own ({sleeps})")
    return _by_phase(rank, frame)


def _by_phase(rank: RankReport, frame: Frame | None) -> Stand:
    """Return the standing of a rank without a stack that says anything."""
    if rank.phase is Phase.DATA:
        return Stand(Standing.DATA_LOADER, frame, "it waits for its next batch (phase data)")
    if rank.process is ProcessState.BLOCKED:
        return Stand(Standing.STORAGE, frame, "the kernel blocks its process (state D)")
    if rank.process is ProcessState.RUNNING and (rank.cpu_share or 0.0) >= _BUSY and not rank.gpu:
        return Stand(Standing.PYTHON, frame, f"it computes ({rank.cpu_share:.2f} of a core) without progress")
    return Stand(Standing.UNKNOWN, frame, "its stack could not be taken")


_BUSY: Final = 0.8


def _python_by_phase(rank: RankReport) -> Standing:
    """Return the standing of a rank in its program's own code, which the declared phase may explain."""
    if rank.phase is Phase.DATA and rank.is_declared:
        return Standing.DATA_LOADER
    if rank.phase in {Phase.SAVE, Phase.RESTORE} or rank.process is ProcessState.BLOCKED:
        return Standing.STORAGE
    return Standing.PYTHON


def _python_words(rank: RankReport) -> str:
    if rank.process is ProcessState.BLOCKED:
        return "the kernel blocks its process (state D) in the program's own code"
    if rank.cpu_share is None:
        return "its stack is in the program's own code"
    if rank.cpu_share >= _BUSY / 2:
        return f"it computes in the program's own code ({rank.cpu_share:.2f} of a core)"
    return f"it sleeps in the program's own code ({rank.cpu_share:.2f} of a core)"
