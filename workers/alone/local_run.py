"""The restart loop: attempt after attempt until the program has done its work, by the same rules as in a fleet.

What an end means, whom it counts against and when the next attempt comes is decided by ``domain.exits`` and
``domain.lifecycle.job``, as the control plane does it; here is only the shell.
"""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from muster.domain.exits import Verdict as ExitVerdict
from muster.domain.ids import AttemptId, Fence
from muster.domain.lifecycle import job as jobs
from muster.domain.lifecycle.model import JobLife, Verdict
from muster.domain.states import Cause, JobState, StopReason
from muster.identity import new_id
from muster.train.fences import highest_fence
from workers.alone.attempt import LocalAttempt, end_leftovers, grace_ms
from workers.alone.hearing import Heard, Hearing
from workers.alone.plan import RunFolder, RunPlan
from workers.host.attempt_folder import boottime_ms

LOOK_S: Final = 0.05
KEPT_ATTEMPTS: Final = 10
"""Of their logs and records; checkpoints have rules of their own."""


@dataclass(slots=True)
class Ask:
    """From signal handlers: how often somebody asked to stop."""

    times: int = 0
    _event: threading.Event = field(default_factory=threading.Event)

    def note(self) -> None:
        self.times += 1
        self._event.set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)


@dataclass(slots=True)
class LocalRun:
    """``say``: a sentence about the run; ``show``: a stream's name and one line that it printed."""

    plan: RunPlan
    folder: RunFolder
    say: Callable[[str], None]
    show: Callable[[str, str], None]
    ask: Ask = field(default_factory=Ask)
    _life: JobLife = field(init=False)
    _ended: list[dict[str, Any]] = field(default_factory=list)
    _began_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._life = JobLife(self.folder.job_id, max_restarts=self.plan.spec.restart.max_restarts)

    def run(self) -> dict[str, Any]:
        """Until it succeeded, failed for good or was asked to stop. Returns how it ended; never leaves a process.

        Raises:
            OSError: the folder cannot be written, or this machine cannot start processes.
        """
        for attempt_id in end_leftovers(self.folder.path, grace_ms(self.plan)):
            self.say(f"{attempt_id} of an earlier run was still here; it was ended")
        while self._life.state is JobState.QUEUED:
            if self.ask.times:
                self._step(jobs.CancelAsked())
            elif self._left_s() == 0:
                self._life = _failed(self._life, "walltime: the wall time was over")
            else:
                self._attempt()
                self._pause()
        return self._outcome()

    def _attempt(self) -> None:
        self.folder.num_attempts += 1
        self._note()
        # Fences grow past every attempt that this folder has seen, whether it kept checkpoints or not.
        fence = Fence(max(highest_fence(self.folder.checkpoints) + 1, self.folder.num_attempts))
        attempt = LocalAttempt(self.plan, self.folder, AttemptId(new_id("attempt")), fence)
        shape = self.plan.spec.shape
        what = f"{shape.num_ranks_per_node} {'rank' if shape.num_ranks_per_node == 1 else 'ranks'}"
        self.say(f"attempt {self.folder.num_attempts} begins: {what}, logs in {attempt.path / 'logs'}")
        self._step(jobs.Placed())
        hearing = Hearing(attempt.path, self.say, self.show)
        attempt.start(self._left_s())
        self._follow(attempt, hearing)
        self._end(attempt, hearing.heard)

    def _follow(self, attempt: LocalAttempt, hearing: Hearing) -> None:
        """Until it has ended. Asked once, it may save and leave; asked again, it is killed."""
        heeded = 0
        while not attempt.has_ended():
            hearing.listen()
            if self.ask.times > heeded:
                heeded = self.ask.times
                grace = grace_ms(self.plan) if heeded == 1 else 0
                self.say(f"stopping; killed in {grace / 1000:g} s, or now if asked again" if grace else "killing it")
                self._step(jobs.CancelAsked())
                attempt.ask_to_stop(StopReason.CANCEL, grace)
            time.sleep(LOOK_S)
        hearing.finish()

    def _end(self, attempt: LocalAttempt, heard: Heard) -> None:
        verdict = attempt.verdict()
        if not attempt.is_clean():
            verdict = ExitVerdict(Cause.LAUNCH_FAILED, "processes of it are left on this machine")
            self._life = _failed(self._life, f"unclean: {verdict.proof}; see {attempt.path / 'clean.json'}")
        self._ended.append(_document(self.folder.num_attempts, attempt, verdict, heard))
        if self._life.state is JobState.ACTIVE:
            self._step(jobs.AttemptEnded(Verdict(verdict.cause, verdict.proof), has_progressed=heard.has_progressed))
        words = f"attempt {self.folder.num_attempts} ended: {verdict.cause}: {verdict.proof}"
        self.say(words if heard.saved_step is None else f"{words}; saved up to step {heard.saved_step}")
        self._note()
        self._forget_old()

    def _pause(self) -> None:
        """Before the next try, cut short by who asks to stop."""
        if self._life.state is not JobState.RECOVERING:
            return
        life = self._life
        left_ms = max(0, (life.next_try_ms or 0) - boottime_ms())
        self.say(f"goes on in {left_ms / 1000:.0f} s; {life.restarts_used} of {life.max_restarts} restarts used")
        asked = self.ask.wait(left_ms / 1000)
        self._step(jobs.CancelAsked() if asked else jobs.Tick())
        while self._life.state is JobState.RECOVERING:  # clocks of two kinds may differ by a tick
            time.sleep(LOOK_S)
            self._step(jobs.Tick())

    def _step(self, event: jobs.Event) -> None:
        self._life, _ = jobs.step(self._life, event, boottime_ms(), self.plan.timers)

    def _left_s(self) -> float | None:
        """Of the wall time, which counts all attempts and the pauses between them."""
        wall_time_s = self.plan.spec.wall_time_s
        return None if wall_time_s is None else max(0.0, self._began_at + wall_time_s - time.monotonic())

    def _note(self) -> None:
        self.folder.note(self.plan.spec, self._outcome())

    def _outcome(self) -> dict[str, Any]:
        state = JobState.FAILED if self._life.state is JobState.HELD else self._life.state
        return {
            "name": self.plan.spec.name,
            "state": str(state),
            "state_reason": self._life.reason,
            "folder": str(self.folder.path),
            "seconds": round(time.monotonic() - self._began_at, 1),
            "attempts": self._ended,
        }

    def _forget_old(self) -> None:
        for path in sorted((self.folder.path / "attempts").glob("att_*"))[:-KEPT_ATTEMPTS]:
            shutil.rmtree(path, ignore_errors=True)


def _failed(life: JobLife, reason: str) -> JobLife:
    return JobLife(life.job_id, JobState.FAILED, life.max_restarts, life.restarts_used, reason=reason)


def _document(number: int, attempt: LocalAttempt, verdict: ExitVerdict, heard: Heard) -> dict[str, Any]:
    record = attempt.record()
    return {
        "number": number,
        "attempt_id": attempt.attempt_id,
        "cause": str(verdict.cause),
        "proof": verdict.proof,
        "culprit_rank": verdict.culprit_rank,
        "started_at_ms": record.get("started_at_ms"),
        "ended_at_ms": record.get("ended_at_ms"),
        "resumed_step": heard.resumed_step,
        "step": heard.step,
        "saved_step": heard.saved_step,
        "loss": heard.loss,
        "folder": str(attempt.path),
    }
