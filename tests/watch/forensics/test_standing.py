from typing import Any

import pytest

from watch.forensics.standing import Standing, is_of_program, stand_of
from watch.phases import Phase
from watch.reports import Frame, ProcessState, RankReport, StackSource

VENV = "/opt/venv/lib/python3.11/site-packages"
STDLIB = "/usr/lib/python3.11"


def standing(*frames: tuple[str, str], **fields: Any) -> Standing:
    stack = tuple(Frame(function, file, 10) for function, file in frames)
    known: dict[str, Any] = {"phase": Phase.STEP, "process": ProcessState.SLEEPING, **fields}
    return stand_of(RankReport(rank=0, stack=stack, **known)).standing


PROGRAM = ("main", "/app/train.py")
LOADER = ("_next_data", f"{VENV}/torch/utils/data/dataloader.py")
CASES: list[tuple[list[tuple[str, str]], Standing]] = [
    ([("all_reduce", f"{VENV}/torch/distributed/distributed_c10d.py"), PROGRAM], Standing.COLLECTIVE),
    ([("wait_for_unshard", f"{VENV}/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"), PROGRAM],
     Standing.COLLECTIVE),
    ([("_engine_run_backward", f"{VENV}/torch/autograd/graph.py"), PROGRAM], Standing.BACKWARD),
    ([("select", f"{STDLIB}/selectors.py"), ("wait", f"{STDLIB}/multiprocessing/connection.py"), LOADER, PROGRAM],
     Standing.DATA_LOADER),
    ([("read", f"{STDLIB}/socket.py"), ("fetch", "/app/store.py"), ("__getitem__", "/app/data.py"), LOADER, PROGRAM],
     Standing.DATA_LOADER),
    ([("write", "/app/s3_file.py"), ("_save", f"{VENV}/torch/serialization.py"), PROGRAM], Standing.STORAGE),
    ([("_save", f"{VENV}/torch/serialization.py"), PROGRAM], Standing.STORAGE),
    ([("barrier", f"{VENV}/torch/distributed/distributed_c10d.py"),
      ("save", f"{VENV}/torch/distributed/checkpoint/state_dict_saver.py"), PROGRAM], Standing.COLLECTIVE),
    ([("synchronize", f"{VENV}/torch/cuda/__init__.py"), PROGRAM], Standing.GPU),
    ([("compile", f"{VENV}/torch/_inductor/codecache.py"), PROGRAM], Standing.COMPILE),
    ([("wait", f"{STDLIB}/threading.py"), PROGRAM], Standing.PYTHON),
    ([("sleep", "/home/torch/train.py")], Standing.PYTHON),
]  # fmt: skip


@pytest.mark.parametrize(("frames", "expected"), CASES)
def test_the_innermost_decisive_frame_counts(frames: list[tuple[str, str]], expected: Standing) -> None:
    assert standing(*frames) is expected


@pytest.mark.parametrize(
    ("functions", "fields", "expected"),
    [
        (("rpc_wait_bit_killable", "nfs_file_fsync"), {}, Standing.STORAGE),
        (("os_acquire_rwlock_write", "nvidia_ioctl"), {}, Standing.GPU),
        (("futex_wait_queue", "do_futex"), {}, Standing.UNKNOWN),
        (("futex_wait_queue",), {"phase": Phase.DATA}, Standing.DATA_LOADER),
        (("do_sys_poll",), {"process": ProcessState.BLOCKED}, Standing.STORAGE),
        (("hrtimer_nanosleep",), {"phase": Phase.IMPORT, "has_sensor": False}, Standing.PYTHON),
        (("do_nanosleep", "hrtimer_nanosleep"), {}, Standing.PYTHON),
        (("common_nsleep_timens",), {"phase": Phase.SAVE}, Standing.STORAGE),
        (("hrtimer_nanosleep",), {"phase": Phase.DATA}, Standing.DATA_LOADER),
    ],
)
@pytest.mark.parametrize("file", ["", "kernel"])
def test_of_a_kernel_stack_only_storage_sleep_and_the_gpus_driver_count(
    functions: tuple[str, ...], fields: dict[str, Any], expected: Standing, file: str
) -> None:
    frames = [(function, file) for function in functions]
    assert standing(*frames, stack_source=StackSource.KERNEL, **fields) is expected


def test_a_frame_of_the_kernel_is_never_the_programs() -> None:
    assert not is_of_program(Frame("do_signal_stop", "kernel"))
    assert is_of_program(Frame("step", "/app/kernel/train.py", 3))


def test_a_rank_whose_stack_cannot_be_taken_is_accused_by_its_process_or_phase_alone() -> None:
    assert standing() is Standing.UNKNOWN
    assert standing(process=ProcessState.RUNNING, cpu_share=1.0) is Standing.PYTHON
    assert standing(process=ProcessState.RUNNING, cpu_share=1.0, gpu="GPU-1") is Standing.UNKNOWN, "it may spin for it"
    assert standing(process=ProcessState.ZOMBIE) is Standing.DEAD
    assert standing(process=ProcessState.STOPPED) is Standing.STOPPED


def test_a_declared_phase_explains_the_programs_own_code() -> None:
    assert standing(PROGRAM, phase=Phase.DATA, is_declared=True) is Standing.DATA_LOADER
    assert standing(PROGRAM, phase=Phase.DATA) is Standing.PYTHON
    assert standing(PROGRAM, phase=Phase.SAVE) is Standing.STORAGE
