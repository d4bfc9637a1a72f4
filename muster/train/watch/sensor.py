"""The sensor: a thread that reports this rank's progress to the supervisor and answers its requests for a stack.

``MUSTER_WATCH_SOCKET`` names the socket; a supervisor of release 0.1.0 offers none, and then there is no thread. Each
line is one JSON object with a ``type``.

| out | fields |
|---|---|
| ``hello`` | rank, world_size; stack_signal and stack_file: a signal on which this process writes its stack there |
| ``progress`` | phase, step, ticks, is_declared, moves: how often the functions on the main thread's stack have changed; at most once a second, and only if something has changed |
| ``stack`` | id, frames of the main thread (function, file, line; innermost first), collectives (``collectives``) |

| in | fields |
|---|---|
| ``collect`` | id: answer with a ``stack`` |

The thread wakes once a second. Where the interpreter's lock is held by a call into C, it cannot answer. For that case
``faulthandler`` writes the stack to a file when the signal arrives, which needs no lock.
"""  # noqa: E501  # a table's row is one line

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muster.train.report.wire import Channel
from muster.train.watch import activity, collectives
from muster.train.watch.stacks import Glance, as_documents, main_frames

if TYPE_CHECKING:
    from typing import TextIO

    from muster.train.runtime.environment import Environment
    from muster.train.watch.activity import Activity

REPORT_EVERY_S: Final = 1.0
_SIGNAL: Final = signal.SIGRTMAX - 3
_SHOWS_A_PHASE: Final = frozenset({activity.FIRST_STEP, activity.STEP, activity.EVALUATION, activity.START})
_OF_THE_LOOP: Final = activity.OF_STATE | {activity.EVALUATION}
"""Phases that the stack shows within the loop alone."""


class Sensor:
    """Sensor of one rank. It lives until the supervisor closes the connection, or the process ends."""

    def __init__(self, path: str, around: Environment, state: Activity) -> None:
        self._channel = Channel(path)
        self._activity = state
        self._moves = 0
        self._functions = 0
        self._reported: tuple[object, ...] = ()
        self._stack_file: TextIO | None = None
        about = self._register(Path(path).with_name(f"stack-{around.rank}.txt"))
        self._channel.send("hello", rank=around.rank, world_size=around.world_size, **about)
        threading.Thread(target=self._run, name="muster-watch", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # it may fail for its own faults, and must not print into the job's log
            self._serve()
        if self._stack_file is not None:
            faulthandler.unregister(_SIGNAL)
            self._stack_file.close()

    def _serve(self) -> None:
        while self._channel.wait(REPORT_EVERY_S):
            for message in self._channel.receive():
                if message.get("type") == "collect":
                    self._answer(message.get("id"))
            self.report()

    def report(self) -> None:
        """Report the rank's progress if it has changed."""
        glance = Glance(self._activity.loop)
        self._moves += glance.functions != self._functions
        self._functions = glance.functions
        phase, is_declared = self._activity.phase()
        if glance.phase is not None and not is_declared and _may_show(phase, glance.phase):
            phase = glance.phase
        state = (phase, self._activity.step, self._activity.ticks, is_declared, self._moves)
        if state != self._reported:
            self._reported = state
            names = ("phase", "step", "ticks", "is_declared", "moves")
            self._channel.send("progress", **dict(zip(names, state, strict=True)))

    def _answer(self, number: object) -> None:
        frames, entered = as_documents(main_frames()), collectives.newest(self._activity)
        self._channel.send("stack", id=number, frames=frames, collectives=entered)

    def _register(self, path: Path) -> dict[str, object]:
        """Have the stack written to ``path`` on a signal that the program has not taken. Returns both for ``hello``."""
        if signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
            return {}
        try:
            self._stack_file = path.open("w", encoding="utf-8")
            faulthandler.register(_SIGNAL, file=self._stack_file, all_threads=False, chain=False)
        except (OSError, RuntimeError, ValueError):
            return {}
        return {"stack_signal": int(_SIGNAL), "stack_file": path.name}


_sensors: list[Sensor] = []


def _may_show(own: str, shown: str) -> bool:
    """Return whether a phase that the stack shows counts more than the runtime's own one.

    Before the loop any function may be the main one, and be named after the evaluation that it also does. A load of
    weights there is a part of the start, whose limit is longer.
    """
    return own in _SHOWS_A_PHASE and not (own == activity.START and shown in _OF_THE_LOOP)


def _offer_pipe() -> None:
    """Have NCCL take requests for its dump where it writes its dumps, unless the program has chosen a place.

    The folder must be there: NCCL ends a process that cannot make its pipe.
    """
    record = os.environ.get("TORCH_FR_DUMP_TEMP_FILE", "")
    folder = Path(record).parent
    if record and folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", record)


def start(around: Environment) -> None:
    """Start the sensor of this rank, once in a process, if the supervisor offers its socket."""
    activity.ACTIVITY.reset()
    path = os.environ.get("MUSTER_WATCH_SOCKET")
    if path and not _sensors:
        _offer_pipe()
        with contextlib.suppress(RuntimeError):  # no thread starts any more
            _sensors.append(Sensor(path, around, activity.ACTIVITY))
