"""The stack of the main thread: its frames, and the phase that they show."""

from __future__ import annotations

import functools
import re
import sys
import threading
from typing import TYPE_CHECKING, Final

from muster.train.watch import activity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

MOST_FRAMES: Final = 100
_LONGEST_NAME: Final = 300
_COMPILERS: Final = (
    "/torch/_dynamo/convert_frame.py",
    "/torch/_inductor/graph.py",
    "/torch/_inductor/scheduler.py",
    "/torch/_inductor/async_compile.py",
    "/torch/_inductor/codecache.py",
    "/triton/compiler/",
)
"""Files that run only while something is compiled: other files of the compilers also run what they have compiled."""
_LOADERS: Final = ("/torch/utils/data/dataloader.py", "/torchdata/stateful_dataloader/stateful_dataloader.py")
_FILES_OF_STATE: Final = {
    "/torch/serialization.py": {
        **dict.fromkeys(("save", "_save", "_legacy_save"), activity.SAVE),
        **dict.fromkeys(("load", "_load", "_legacy_load"), activity.RESTORE),
    },
    "/torch/distributed/checkpoint/state_dict_saver.py": dict.fromkeys(
        ("save", "async_save", "save_state_dict", "_save_state_dict"), activity.SAVE
    ),
    "/torch/distributed/checkpoint/state_dict_loader.py": dict.fromkeys(
        ("load", "load_state_dict", "_load_state_dict", "_load_state_dict_from_keys"), activity.RESTORE
    ),
}
"""Functions by which a program saves or loads by itself; each does its work before it returns."""
_EVALUATES: Final = re.compile(r"(^|_)(eval|evaluate|evaluation|validate|validation|valid)(_|$)")


def main_frames() -> Iterator[FrameType]:
    """Yield the frames of the main thread, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  # the one way to see them
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def as_documents(frames: Iterator[FrameType]) -> list[dict[str, object]]:
    """Return each frame as JSON: function, file, line."""
    return [
        {
            "function": frame.f_code.co_qualname[:_LONGEST_NAME]
            if hasattr(frame.f_code, "co_qualname")
            else frame.f_code.co_name[:_LONGEST_NAME],
            "file": frame.f_code.co_filename[-_LONGEST_NAME:],
            "line": frame.f_lineno or 0,
        }
        for frame in frames
    ]


class Glance:
    """One look at the main thread. ``functions`` identifies the functions on its stack, without their lines.

    ``phase``: the one that the stack shows, or None. Only frames inside ``loop`` show it, the function that iterates
    the steps: a main function may be named after the evaluation that it also does.
    """

    __slots__ = ("functions", "phase")

    def __init__(self, loop: CodeType | None = None) -> None:
        signs: list[int] = []
        is_inside = True
        self.phase: str | None = None
        for frame in main_frames():
            code = frame.f_code
            signs.append(id(code))
            is_inside = is_inside and code is not loop
            shown = _shown(code.co_filename, code.co_name) if is_inside else None
            if shown is not None and (self.phase is None or _counts_before(shown, self.phase)):
                self.phase = shown
        self.functions = hash(tuple(signs))


def _counts_before(outer: str, inner: str) -> bool:
    """Return whether the phase of an outer frame counts, and not that of a frame inside it.

    A dataset may load each of its samples by ``torch.load``: that is a wait for data.
    """
    return outer == activity.COMPILE or (outer == activity.DATA and inner in activity.OF_STATE)


@functools.lru_cache(maxsize=4096)
def _shown(file: str, function: str) -> str | None:
    if any(part in file for part in _COMPILERS):
        return activity.COMPILE
    if file.endswith(_LOADERS):
        return activity.DATA
    if _EVALUATES.search(function):
        return activity.EVALUATION
    if "torch/" not in file:
        return None
    return next((found.get(function) for end, found in _FILES_OF_STATE.items() if file.endswith(end)), None)
